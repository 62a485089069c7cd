// AVX2, with or without AVX-VNNI: 8 lanes. Part of simd.h.
namespace kvedge::bench::KVEDGE_ISA {

using Floats = __m256;
using Words = __m256i;
constexpr int kLanes = 8;
constexpr bool kWide = false;
#ifdef __AVXVNNI__
constexpr int kBytesMax = 127;
#else
constexpr int kBytesMax = 63;  // four products of 127 and 63 fit 16 bits, so two vpmaddubsw share one widening
#endif

KVEDGE_INLINE Floats no_floats() { return _mm256_setzero_ps(); }
KVEDGE_INLINE Floats load_floats(const float* at) { return _mm256_loadu_ps(at); }
KVEDGE_INLINE Floats load_halves(const uint16_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
KVEDGE_INLINE void store_floats(float* at, Floats x) { _mm256_storeu_ps(at, x); }
KVEDGE_INLINE Floats every_float(float x) { return _mm256_set1_ps(x); }
KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

KVEDGE_INLINE Words load_words(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
KVEDGE_INLINE void store_words(int32_t* at, Words x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x); }
KVEDGE_INLINE Words every_word(int32_t x) { return _mm256_set1_epi32(x); }
KVEDGE_INLINE Floats to_floats(Words x) { return _mm256_cvtepi32_ps(x); }
template <int N>
KVEDGE_INLINE Words right(Words x) { return N == 0 ? x : _mm256_srli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words left(Words x) { return _mm256_slli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words right_signed(Words x) { return _mm256_srai_epi32(x, N); }
KVEDGE_INLINE Words both(Words x, int32_t mask) { return _mm256_and_si256(x, every_word(mask)); }
KVEDGE_INLINE Words flip(Words x, int32_t mask) { return _mm256_xor_si256(x, every_word(mask)); }
// a where mask is set, else b.
KVEDGE_INLINE Words choose(int32_t mask, Words a, Words b) {
  return _mm256_or_si256(both(a, mask), both(b, ~mask));
}

// vpermps looks at three bits of an index: codes of up to 3 bits need no masking. The sign of a 4-bit code,
// its top bit, goes where floats have theirs.
template <int BITS>
struct FloatTable {
  Floats levels;
  explicit FloatTable(const float* of_codes)
      : FloatTable(of_codes, [](int i) { return i & ((1 << BITS) - 1); }) {}
  template <class ToCode>
  FloatTable(const float* of_codes, ToCode code) {
    float repeated[8];
    for (int i = 0; i < 8; ++i) repeated[i] = of_codes[code(i)];
    levels = load_floats(repeated);
  }
  template <int BIT>
  KVEDGE_INLINE Floats at(Words w) const {
    const Floats level = _mm256_permutevar8x32_ps(levels, right<BIT>(w));
    if constexpr (BITS < 4) return level;
    const Words sign = both(left<(BITS == 4 ? 28 - BIT : 0)>(w), int32_t(0x80000000u));
    return _mm256_xor_ps(level, _mm256_castsi256_ps(sign));
  }
};

template <int BITS>
struct ByteTable {
  Words levels;
  explicit ByteTable(const int8_t* of_codes)
      : ByteTable(of_codes, [](int i) { return i & ((1 << BITS) - 1); }) {}
  template <class ToCode>
  ByteTable(const int8_t* of_codes, ToCode code) {
    int8_t repeated[32];
    for (int i = 0; i < 32; ++i) repeated[i] = of_codes[code(i)];
    levels = load_words(repeated);
  }
  // vpshufb looks at four bits, and gives 0 where the top one is set.
  KVEDGE_INLINE Words at(Words w) const { return _mm256_shuffle_epi8(levels, both(w, 0x0f0f0f0f)); }
};

// Four products per word and operand. Keys: levels are unsigned (biased), x signed; values the other way round.
template <bool KEYS>
KVEDGE_INLINE Words dot8(Words sum, Words a, Words b, Words x_a, Words x_b) {
  const Words u_a = KEYS ? a : x_a, s_a = KEYS ? x_a : a, u_b = KEYS ? b : x_b, s_b = KEYS ? x_b : b;
#ifdef __AVXVNNI__
  return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sum, u_a, s_a), u_b, s_b);
#else
  const Words pairs = _mm256_add_epi16(_mm256_maddubs_epi16(u_a, s_a), _mm256_maddubs_epi16(u_b, s_b));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

KVEDGE_INLINE Words dot4(Words sum, Words a, Words x) {
#ifdef __AVXVNNI__
  return _mm256_dpbusd_avx_epi32(sum, a, x);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, x), _mm256_set1_epi16(1)));
#endif
}

// Sums over lanes of four vectors.
KVEDGE_INLINE __m128 sums_of(Floats a, Floats b, Floats c, Floats d) {
  const Floats all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
KVEDGE_INLINE __m128i sums_of(Words a, Words b, Words c, Words d) {
  const Words all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

}  // namespace kvedge::bench::KVEDGE_ISA
