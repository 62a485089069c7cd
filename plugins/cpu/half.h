// fp16 <-> fp32 in integer arithmetic, so that every CPU gives the same bits.
// Static: this header is also compiled for newer instruction sets, whose code must not be shared.
#ifndef KVEDGE_HALF_H
#define KVEDGE_HALF_H

#include <cstdint>
#include <cstring>

namespace kvedge {

static inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

static inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

// Finite halves and NaN: to_half makes no infinity.
static inline float from_half(uint16_t h) {
  if ((h & 0x7c00u) == 0x7c00u) return float_of_bits(0x7fc00000u | uint32_t(h & 0x8000u) << 16);
  const float magnitude = float_of_bits(uint32_t(h & 0x7fffu) << 13) * 0x1p112f;
  return float_of_bits(bits_of_float(magnitude) | uint32_t(h & 0x8000u) << 16);
}

// Round to nearest even, saturating at 65504.
static inline uint16_t to_half(float x) {
  const uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477fe000u) return uint16_t(sign | 0x7bffu);
  if (magnitude < 0x38800000u) {  // below 2^-14: let the adder round to multiples of 2^-24
    const float shifted = float_of_bits(magnitude) + 0.5f;
    return uint16_t(sign | (bits_of_float(shifted) - 0x3f000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1u;
  const uint32_t rounded = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  return uint16_t(sign | (rounded > 0x7bffu ? 0x7bffu : rounded));
}

}  // namespace kvedge
#endif
