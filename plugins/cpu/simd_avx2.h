// AVX2 with FMA and F16C (x86-64-v3): 8 lanes. Part of simd.h.
#include <immintrin.h>

namespace kvedge {
namespace {

using Floats = __m256;
using Words = __m256i;
constexpr int kWidth = 8;
constexpr int kRegisters = 16;
constexpr int kDirectRows = 3;

KVEDGE_INLINE Floats no_floats() { return _mm256_setzero_ps(); }
KVEDGE_INLINE Floats load_floats(const float* at) { return _mm256_loadu_ps(at); }
KVEDGE_INLINE void store_floats(float* at, Floats x) { _mm256_storeu_ps(at, x); }
KVEDGE_INLINE Floats every_float(float x) { return _mm256_set1_ps(x); }
KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
KVEDGE_INLINE Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
KVEDGE_INLINE Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
KVEDGE_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
KVEDGE_INLINE Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
KVEDGE_INLINE bool same_floats(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) == 0; }
// Both give b where either is NaN.
KVEDGE_INLINE Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
KVEDGE_INLINE Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
// Over the lanes; the largest of NaN and others is any.
KVEDGE_INLINE float sum_of(Floats x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
KVEDGE_INLINE float largest_of(Floats x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
KVEDGE_INLINE float first_of(Floats x) { return _mm256_cvtss_f32(x); }
KVEDGE_INLINE Words bits_of(Floats x) { return _mm256_castps_si256(x); }
KVEDGE_INLINE Floats floats_of(Words x) { return _mm256_castsi256_ps(x); }
KVEDGE_INLINE Words add_words(Words x, int32_t n) { return _mm256_add_epi32(x, _mm256_set1_epi32(n)); }
// 0 where test < limit, else x
KVEDGE_INLINE Floats zero_below(float limit, Floats test, Floats x) {
  return _mm256_and_ps(_mm256_cmp_ps(test, every_float(limit), _CMP_NLT_UQ), x);
}

// Lanes are multiples of 8, so there is always a whole vector.
KVEDGE_INLINE Words load_words(const int32_t* at, int64_t) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
KVEDGE_INLINE Floats to_floats(Words x) { return _mm256_cvtepi32_ps(x); }
template <int N>
KVEDGE_INLINE Words right(Words x) { return N == 0 ? x : _mm256_srli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words left(Words x) { return N == 0 ? x : _mm256_slli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words right_signed(Words x) { return _mm256_srai_epi32(x, N); }
KVEDGE_INLINE Words both(Words x, uint32_t mask) { return _mm256_and_si256(x, _mm256_set1_epi32(int32_t(mask))); }
// a where mask is set, else b.
KVEDGE_INLINE Words choose(uint32_t mask, Words a, Words b) { return _mm256_or_si256(both(a, mask), both(b, ~mask)); }

KVEDGE_INLINE Words flip_each(Words a, Words b) { return _mm256_xor_si256(a, b); }
KVEDGE_INLINE Words every_word(int32_t x) { return _mm256_set1_epi32(x); }
KVEDGE_INLINE void store_words(int32_t* at, Words x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x); }
KVEDGE_INLINE Words nearest(Floats x) { return _mm256_cvtps_epi32(x); }
KVEDGE_INLINE Floats load_floats(const uint16_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// sum + a . b of the four bytes of each word; a has BITS bits and no sign, b has a sign.
template <int BITS>
KVEDGE_INLINE Words dot_bytes(Words sum, Words a, Words b) {
  if constexpr (BITS < 8)  // sums of two products fit 16 bits
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
  const Words even = _mm256_madd_epi16(both(a, 0x00ff00ffu), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const Words odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

// Levels by the low bits of a word. vpermps looks at three bits of an index, so codes of up to 3 bits need no
// masking; the sign of a 4-bit code goes where floats have theirs. SIGN_FIRST: the sign is the lowest bit, the
// magnitude above it.
template <int BITS, bool SIGN_FIRST>
struct LevelTable {
  Floats levels;
  KVEDGE_MEMBER LevelTable() {
    float repeated[kWidth];
    for (int i = 0; i < kWidth; ++i) repeated[i] = level_of_low_bits<BITS, SIGN_FIRST>(i);
    levels = load_floats(repeated);
  }
  template <int BIT>
  KVEDGE_MEMBER Floats at(Words w) const {
    const Floats level = _mm256_permutevar8x32_ps(levels, right<BIT>(w));
    if constexpr (BITS < 4) return level;
    return _mm256_xor_ps(level, _mm256_castsi256_ps(both(left<(BITS == 4 ? 28 - BIT : 0)>(w), 0x80000000u)));
  }
};

}  // namespace
}  // namespace kvedge

#include "simd_x86.h"
