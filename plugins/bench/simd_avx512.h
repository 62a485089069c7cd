// AVX-512 with VBMI and VNNI: 16 lanes. Part of simd.h.
namespace kvedge::bench::KVEDGE_ISA {

using Floats = __m512;
using Words = __m512i;
constexpr int kLanes = 16;
constexpr bool kWide = true;
constexpr int kBytesMax = 127;  // the largest level and query in the integer path

KVEDGE_INLINE Floats no_floats() { return _mm512_setzero_ps(); }
KVEDGE_INLINE Floats load_floats(const float* at) { return _mm512_loadu_ps(at); }
KVEDGE_INLINE Floats load_halves(const uint16_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
KVEDGE_INLINE void store_floats(float* at, Floats x) { _mm512_storeu_ps(at, x); }
KVEDGE_INLINE Floats every_float(float x) { return _mm512_set1_ps(x); }
KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

KVEDGE_INLINE Words load_words(const void* at) { return _mm512_loadu_si512(at); }
KVEDGE_INLINE void store_words(int32_t* at, Words x) { _mm512_storeu_si512(at, x); }
KVEDGE_INLINE Words every_word(int32_t x) { return _mm512_set1_epi32(x); }
KVEDGE_INLINE Floats to_floats(Words x) { return _mm512_cvtepi32_ps(x); }
template <int N>
KVEDGE_INLINE Words right(Words x) { return N == 0 ? x : _mm512_srli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words left(Words x) { return _mm512_slli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words right_signed(Words x) { return _mm512_srai_epi32(x, N); }
KVEDGE_INLINE Words flip(Words x, int32_t mask) { return _mm512_xor_si512(x, every_word(mask)); }
// a where mask is set, else b.
KVEDGE_INLINE Words choose(int32_t mask, Words a, Words b) {
  return _mm512_ternarylogic_epi32(every_word(mask), a, b, 0xca);
}

// vpermps looks at four bits of an index, vpermb at six: a table that repeats itself needs no masking.
template <int BITS>
struct FloatTable {
  Floats levels;
  explicit FloatTable(const float* of_codes)
      : FloatTable(of_codes, [](int i) { return i & ((1 << BITS) - 1); }) {}
  template <class ToCode>
  FloatTable(const float* of_codes, ToCode code) {
    float repeated[16];
    for (int i = 0; i < 16; ++i) repeated[i] = of_codes[code(i)];
    levels = load_floats(repeated);
  }
  // The level whose code begins at a bit of each word.
  template <int BIT>
  KVEDGE_INLINE Floats at(Words w) const { return _mm512_permutexvar_ps(right<BIT>(w), levels); }
};

template <int BITS>
struct ByteTable {
  Words levels;
  explicit ByteTable(const int8_t* of_codes)
      : ByteTable(of_codes, [](int i) { return i & ((1 << BITS) - 1); }) {}
  template <class ToCode>
  ByteTable(const int8_t* of_codes, ToCode code) {
    int8_t repeated[64];
    for (int i = 0; i < 64; ++i) repeated[i] = of_codes[code(i)];
    levels = load_words(repeated);
  }
  // The levels of the codes in the low bits of each byte.
  KVEDGE_INLINE Words at(Words w) const { return _mm512_permutexvar_epi8(w, levels); }
};

// Four products per word and operand. Keys: levels are unsigned (biased), x signed; values the other way round.
template <bool KEYS>
KVEDGE_INLINE Words dot8(Words sum, Words a, Words b, Words x_a, Words x_b) {
  return KEYS ? _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, a, x_a), b, x_b)
              : _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, x_a, a), x_b, b);
}

KVEDGE_INLINE Words dot4(Words sum, Words a, Words x) { return _mm512_dpbusd_epi32(sum, a, x); }

// Sums over lanes of four vectors.
KVEDGE_INLINE __m128 sums_of(Floats a, Floats b, Floats c, Floats d) {
  const Floats ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Floats cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const Floats all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
KVEDGE_INLINE __m128i sums_of(Words a, Words b, Words c, Words d) {
  const Words ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const Words cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const Words all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

}  // namespace kvedge::bench::KVEDGE_ISA
