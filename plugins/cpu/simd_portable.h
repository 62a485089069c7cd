// Plain vectors of the compiler: 4 lanes, as SSE2 and NEON have them; simd_neon.h replaces what NEON does better.
// Part of simd.h.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvedge {
namespace {

typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Words __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t Unsigned __attribute__((vector_size(16), aligned(4), may_alias));
constexpr int kWidth = 4;
#if defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif
#if defined(__ARM_FEATURE_DOTPROD)
constexpr int kDirectRows = 4;
#else
constexpr int kDirectRows = 0;  // a level takes a dozen instructions
#endif

KVEDGE_INLINE Floats no_floats() { return Floats{}; }
KVEDGE_INLINE Floats load_floats(const float* at) { return *reinterpret_cast<const Floats*>(at); }
KVEDGE_INLINE void store_floats(float* at, Floats x) { *reinterpret_cast<Floats*>(at) = x; }
KVEDGE_INLINE Floats every_float(float x) { return Floats{} + x; }
KVEDGE_INLINE Floats multiply(Floats a, Floats b) { return a * b; }
KVEDGE_INLINE Floats divide(Floats a, Floats b) { return a / b; }
KVEDGE_INLINE Floats add(Floats a, Floats b) { return a + b; }
KVEDGE_INLINE Floats subtract(Floats a, Floats b) { return a - b; }
KVEDGE_INLINE bool same_floats(Floats a, Floats b) {
  const Words other = a != b;
  return (other[0] | other[1] | other[2] | other[3]) == 0;
}
// Both give b where either is NaN.
KVEDGE_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
KVEDGE_INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
// Over the lanes; the largest of NaN and others is any.
KVEDGE_INLINE float sum_of(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }
KVEDGE_INLINE float largest_of(Floats x) {
  const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
KVEDGE_INLINE float first_of(Floats x) { return x[0]; }
KVEDGE_INLINE Words bits_of(Floats x) { return (Words)x; }
KVEDGE_INLINE Floats floats_of(Words x) { return (Floats)x; }
KVEDGE_INLINE Words add_words(Words x, int32_t n) { return x + n; }
// 0 where test < limit, else x
KVEDGE_INLINE Floats zero_below(float limit, Floats test, Floats x) { return (Floats)((Words)x & ~(test < limit)); }

KVEDGE_INLINE Words load_words(const int32_t* at, int64_t) { return *reinterpret_cast<const Words*>(at); }
KVEDGE_INLINE Floats to_floats(Words x) { return __builtin_convertvector(x, Floats); }
template <int N>
KVEDGE_INLINE Words right(Words x) { return (Words)((Unsigned)x >> N); }
template <int N>
KVEDGE_INLINE Words left(Words x) { return (Words)((Unsigned)x << N); }
template <int N>
KVEDGE_INLINE Words right_signed(Words x) { return x >> N; }
KVEDGE_INLINE Words choose(uint32_t mask, Words a, Words b) { return (a & int32_t(mask)) | (b & int32_t(~mask)); }

KVEDGE_INLINE Words flip_each(Words a, Words b) { return a ^ b; }
KVEDGE_INLINE Words every_word(int32_t x) { return Words{} + x; }
KVEDGE_INLINE Words both(Words x, uint32_t mask) { return x & int32_t(mask); }
KVEDGE_INLINE void store_words(int32_t* at, Words x) { *reinterpret_cast<Words*>(at) = x; }
// Of |x| < 2^22: adding 1.5 * 2^23 rounds to the nearest integer.
KVEDGE_INLINE Words nearest(Floats x) { return (Words)(x + 12582912.0f) - 0x4b400000; }
// Levels by the low bits of a word, by a tree of selections. SIGN_FIRST: the sign is the lowest bit, the
// magnitude above it.
template <int BITS, bool SIGN_FIRST>
struct LevelTable {
  template <int BIT>
  KVEDGE_MEMBER Floats at(Words w) const {
    constexpr int kMagnitude = SIGN_FIRST ? BIT + 1 : BIT, kSign = SIGN_FIRST ? BIT : BIT + BITS - 1;
    Floats choice[1 << (BITS - 1)];
    for (int i = 0; i < 1 << (BITS - 1); ++i) choice[i] = Floats{} + levels_of(BITS)[i];
    for (int bit = 0; bit < BITS - 1; ++bit) {
      const Words set = (w & int32_t(1u << (kMagnitude + bit))) != 0;
      for (int i = 0; i < 1 << (BITS - 2 - bit); ++i) choice[i] = set ? choice[2 * i + 1] : choice[2 * i];
    }
    return (Floats)((Words)choice[0] ^ (left<31 - kSign>(w) & int32_t(0x80000000u)));
  }
};

#if !defined(__ARM_FEATURE_DOTPROD)
// sum + a . b of the four bytes of each word; a has BITS bits and no sign, b has a sign.
template <int BITS>
KVEDGE_INLINE Words dot_bytes(Words sum, Words a, Words b) {
#if defined(__SSE2__)
  const __m128i x = (__m128i)a, y = (__m128i)b;
  const __m128i even = _mm_madd_epi16(_mm_and_si128(x, _mm_set1_epi16(255)), _mm_srai_epi16(_mm_slli_epi16(y, 8), 8));
  const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(x, 8), _mm_srai_epi16(y, 8));
  return sum + (Words)_mm_add_epi32(even, odd);
#endif
  for (int shift = 0; shift < 32; shift += 8) sum += ((Words)((Unsigned)a >> shift) & 0xff) * ((b << (24 - shift)) >> 24);
  return sum;
}
#endif

#if !defined(__aarch64__)
KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
KVEDGE_INLINE Floats load_floats(const uint16_t* at) {
  return Floats{from_half(at[0]), from_half(at[1]), from_half(at[2]), from_half(at[3])};
}

// out [8][stride] = in [8][columns], floats or halves, transposed
template <class Element>
KVEDGE_INLINE void transpose_block(const Element* in, int64_t columns, float* out, int64_t stride) {
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; c += kWidth) {
      float row[kWidth];
      store_floats(row, load_floats(in + r * columns + c));
      for (int i = 0; i < kWidth; ++i) out[(c + i) * stride + r] = row[i];
    }
}

KVEDGE_INLINE void read_8_halves(const uint16_t* halves, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = from_half(halves[i]);
}

KVEDGE_INLINE void round_8_to_half(const float* x, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = from_half(to_half(x[i]));
}
#endif

}  // namespace
}  // namespace kvedge

#if defined(__aarch64__)
#include "simd_neon.h"
#endif
