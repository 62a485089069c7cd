// What NEON has beyond the plain vectors of simd_portable.h, and dot products of bytes (ARMv8.2 dotprod). Part of simd.h.
#include <arm_neon.h>

namespace kvedge {
namespace {

KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
KVEDGE_INLINE Floats load_floats(const uint16_t* at) {
  return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)));
}
KVEDGE_INLINE void read_8_halves(const uint16_t* halves, float* out) {
  store_floats(out, load_floats(halves));
  store_floats(out + 4, load_floats(halves + 4));
}

// As to_half and from_half: to nearest even, saturating; NaN stays one.
KVEDGE_INLINE Floats rounded_to_half(Floats x) {
  const float32x4_t inside = vmaxq_f32(vdupq_n_f32(-65504.0f), vminq_f32(vdupq_n_f32(65504.0f), (float32x4_t)x));
  return (Floats)vcvt_f32_f16(vcvt_f16_f32(inside));
}
KVEDGE_INLINE void round_8_to_half(const float* x, float* out) {
  store_floats(out, rounded_to_half(load_floats(x)));
  store_floats(out + 4, rounded_to_half(load_floats(x + 4)));
}

template <class Element>
KVEDGE_INLINE void transpose_quarter(const Element* in, int64_t columns, float* out, int64_t stride) {
  const auto row = [&](int n) { return (float32x4_t)load_floats(in + n * columns); };
  const float32x4_t a = row(0), b = row(1), c = row(2), d = row(3);
  const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
  const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d)), cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
  vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even)));
  vst1q_f32(out + stride, vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)));
  vst1q_f32(out + 2 * stride, vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even)));
  vst1q_f32(out + 3 * stride, vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)));
}

// out [8][stride] = in [8][columns], floats or halves, transposed
template <class Element>
KVEDGE_INLINE void transpose_block(const Element* in, int64_t columns, float* out, int64_t stride) {
  repeat<4>(KVEDGE_EACH(n) {
    transpose_quarter(in + 4 * (n % 2) * columns + 4 * (n / 2), columns, out + 4 * (n / 2) * stride + 4 * (n % 2), stride);
  });
}

#if defined(__ARM_FEATURE_DOTPROD)
#define KVEDGE_BYTE_DOTS 1

// sum + a . b of the four bytes of each word; a has BITS bits and no sign, b has a sign. The instruction knows only
// bytes with a sign: of 8 bits, a - 128 meets b, and 128 times the sum of b comes on top.
template <int BITS>
KVEDGE_INLINE Words dot_bytes(Words sum, Words a, Words b) {
  const auto dot = [](int32x4_t to, Words x, Words y) {
    return vdotq_s32(to, vreinterpretq_s8_s32((int32x4_t)x), vreinterpretq_s8_s32((int32x4_t)y));
  };
  if constexpr (BITS < 8) return (Words)dot((int32x4_t)sum, a, b);
  const int32x4_t sums = dot(vdupq_n_s32(0), every_word(0x01010101), b);
  return (Words)vaddq_s32(dot((int32x4_t)sum, a ^ int32_t(0x80808080u), b), vshlq_n_s32(sums, 7));
}

KVEDGE_INLINE Words add_each(Words a, Words b) { return a + b; }
KVEDGE_INLINE Words minus_128_times(Words x) { return Words{} - left<7>(x); }
KVEDGE_INLINE Words flip(Words x, uint32_t mask) { return x ^ int32_t(mask); }
KVEDGE_INLINE void store_low_bytes(uint8_t* at, Words x) {
  const uint16x4_t low = vmovn_u32((uint32x4_t)x);
  vst1_lane_u32(reinterpret_cast<uint32_t*>(at), vreinterpret_u32_u8(vmovn_u16(vcombine_u16(low, low))), 0);
}

// Bytes by the low nibble of each byte.
struct ByteTable {
  int8x16_t bytes;
  KVEDGE_MEMBER ByteTable() : bytes(vdupq_n_s8(0)) {}
  KVEDGE_MEMBER explicit ByteTable(const int8_t* of16) : bytes(vld1q_s8(of16)) {}
  KVEDGE_MEMBER Words at(Words w) const {
    return (Words)vqtbl1q_s8(bytes, vreinterpretq_u8_s32((int32x4_t)both(w, 0x0f0f0f0fu)));
  }
};
#endif

}  // namespace
}  // namespace kvedge
