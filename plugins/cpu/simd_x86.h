// What AVX2 and AVX-512 do with the same eight lanes. Part of simd.h.
namespace kvedge {
namespace {

// Two rows of four columns each: in the low half `at`, in the high half four rows further.
KVEDGE_INLINE __m256 two_quarters(const float* at, int64_t stride) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)), _mm_loadu_ps(at + 4 * stride), 1);
}

KVEDGE_INLINE __m256 two_quarters(const uint16_t* at, int64_t stride) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 4 * stride));
  return _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
}

template <class Element>
KVEDGE_INLINE void transpose_quarter(const Element* in, int64_t columns, float* out, int64_t stride) {
  const __m256 a = two_quarters(in, columns), b = two_quarters(in + columns, columns);
  const __m256 c = two_quarters(in + 2 * columns, columns), d = two_quarters(in + 3 * columns, columns);
  const __m256 ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
  const __m256 cd_low = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
  _mm256_storeu_ps(out, _mm256_shuffle_ps(ab_low, cd_low, 0x44));
  _mm256_storeu_ps(out + stride, _mm256_shuffle_ps(ab_low, cd_low, 0xee));
  _mm256_storeu_ps(out + 2 * stride, _mm256_shuffle_ps(ab_high, cd_high, 0x44));
  _mm256_storeu_ps(out + 3 * stride, _mm256_shuffle_ps(ab_high, cd_high, 0xee));
}

// out [8][stride] = in [8][columns], floats or halves, transposed
template <class Element>
KVEDGE_INLINE void transpose_block(const Element* in, int64_t columns, float* out, int64_t stride) {
  transpose_quarter(in, columns, out, stride);
  transpose_quarter(in + 4, columns, out + 4 * stride, stride);
}

KVEDGE_INLINE __m256 halves_to_floats(const uint16_t* halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

KVEDGE_INLINE void read_8_halves(const uint16_t* halves, float* out) {
  _mm256_storeu_ps(out, halves_to_floats(halves));
}

// As to_half and from_half: to nearest even, saturating; NaN stays one.
KVEDGE_INLINE void round_8_to_half(const float* x, float* out) {
  const __m256 limit = _mm256_set1_ps(65504.0f), low = _mm256_set1_ps(-65504.0f);
  const __m256 inside = _mm256_max_ps(low, _mm256_min_ps(limit, _mm256_loadu_ps(x)));
  _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm256_cvtps_ph(inside, _MM_FROUND_TO_NEAREST_INT)));
}

}  // namespace
}  // namespace kvedge
