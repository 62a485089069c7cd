// AVX-512 (x86-64-v4): 16 lanes. Part of simd.h.
#include <immintrin.h>

namespace kvedge {
namespace {

using Floats = __m512;
using Words = __m512i;
constexpr int kWidth = 16;
constexpr int kRegisters = 32;
constexpr int kDirectRows = 4;

KVEDGE_INLINE Floats no_floats() { return _mm512_setzero_ps(); }
KVEDGE_INLINE Floats load_floats(const float* at) { return _mm512_loadu_ps(at); }
KVEDGE_INLINE void store_floats(float* at, Floats x) { _mm512_storeu_ps(at, x); }
KVEDGE_INLINE Floats every_float(float x) { return _mm512_set1_ps(x); }
KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
KVEDGE_INLINE Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
KVEDGE_INLINE Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
KVEDGE_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
KVEDGE_INLINE Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
KVEDGE_INLINE bool same_floats(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) == 0; }
// Both give b where either is NaN.
KVEDGE_INLINE Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
KVEDGE_INLINE Floats smaller(Floats a, Floats b) { return _mm512_min_ps(a, b); }
// Over the lanes; the largest of NaN and others is any.
KVEDGE_INLINE float sum_of(Floats x) { return _mm512_reduce_add_ps(x); }
KVEDGE_INLINE float largest_of(Floats x) { return _mm512_reduce_max_ps(x); }
KVEDGE_INLINE float first_of(Floats x) { return _mm512_cvtss_f32(x); }
KVEDGE_INLINE Words bits_of(Floats x) { return _mm512_castps_si512(x); }
KVEDGE_INLINE Floats floats_of(Words x) { return _mm512_castsi512_ps(x); }
KVEDGE_INLINE Words add_words(Words x, int32_t n) { return _mm512_add_epi32(x, _mm512_set1_epi32(n)); }
// 0 where test < limit, else x
KVEDGE_INLINE Floats zero_below(float limit, Floats test, Floats x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, every_float(limit), _CMP_NLT_UQ), x);
}

// The first `lanes` words, or 16.
KVEDGE_INLINE Words load_words(const int32_t* at, int64_t lanes) {
  return lanes >= kWidth ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi32(__mmask16((1u << lanes) - 1), at);
}
KVEDGE_INLINE Floats to_floats(Words x) { return _mm512_cvtepi32_ps(x); }
template <int N>
KVEDGE_INLINE Words right(Words x) { return N == 0 ? x : _mm512_srli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words left(Words x) { return N == 0 ? x : _mm512_slli_epi32(x, N); }
template <int N>
KVEDGE_INLINE Words right_signed(Words x) { return _mm512_srai_epi32(x, N); }
// a where mask is set, else b.
KVEDGE_INLINE Words choose(uint32_t mask, Words a, Words b) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(int32_t(mask)), a, b, 0xca);
}

KVEDGE_INLINE Words flip_each(Words a, Words b) { return _mm512_xor_si512(a, b); }
KVEDGE_INLINE Words every_word(int32_t x) { return _mm512_set1_epi32(x); }
KVEDGE_INLINE Words both(Words x, uint32_t mask) { return _mm512_and_si512(x, _mm512_set1_epi32(int32_t(mask))); }
KVEDGE_INLINE void store_words(int32_t* at, Words x) { _mm512_storeu_si512(at, x); }
KVEDGE_INLINE Words nearest(Floats x) { return _mm512_cvtps_epi32(x); }
KVEDGE_INLINE Floats load_floats(const uint16_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// sum + a . b of the four bytes of each word; a has BITS bits and no sign, b has a sign.
template <int BITS>
KVEDGE_INLINE Words dot_bytes(Words sum, Words a, Words b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, a, b);
#else
  if constexpr (BITS < 8)  // sums of two products fit 16 bits
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
  const Words even = _mm512_madd_epi16(both(a, 0x00ff00ffu), _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
  const Words odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
  return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
}

#if defined(__AVX512VNNI__)
#define KVEDGE_BYTE_DOTS 1
KVEDGE_INLINE Words add_each(Words a, Words b) { return _mm512_add_epi32(a, b); }
KVEDGE_INLINE Words minus_128_times(Words x) { return _mm512_sub_epi32(every_word(0), _mm512_slli_epi32(x, 7)); }
KVEDGE_INLINE Words flip(Words x, uint32_t mask) { return _mm512_xor_si512(x, _mm512_set1_epi32(int32_t(mask))); }
KVEDGE_INLINE void store_low_bytes(uint8_t* at, Words x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(x));
}

// Bytes by the low nibble of each byte.
struct ByteTable {
  __m512i bytes;
  KVEDGE_MEMBER ByteTable() : bytes(_mm512_setzero_si512()) {}
  KVEDGE_MEMBER explicit ByteTable(const int8_t* of16)
      : bytes(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of16)))) {}
  KVEDGE_MEMBER Words at(Words w) const { return _mm512_shuffle_epi8(bytes, both(w, 0x0f0f0f0fu)); }
};
#endif

// Levels by the low bits of a word. vpermps looks at four bits of an index: a table that repeats itself needs
// no masking. SIGN_FIRST: the sign is the lowest bit, the magnitude above it.
template <int BITS, bool SIGN_FIRST>
struct LevelTable {
  Floats levels;
  KVEDGE_MEMBER LevelTable() {
    float repeated[kWidth];
    for (int i = 0; i < kWidth; ++i) repeated[i] = level_of_low_bits<BITS, SIGN_FIRST>(i);
    levels = load_floats(repeated);
  }
  template <int BIT>
  KVEDGE_MEMBER Floats at(Words w) const { return _mm512_permutexvar_ps(right<BIT>(w), levels); }
};

}  // namespace
}  // namespace kvedge

#include "simd_x86.h"
