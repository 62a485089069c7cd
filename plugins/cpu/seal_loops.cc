// Inner loops of seal. Built once per instruction set, without fused multiply-add, and left to the compiler's
// vectors: tokens are the lanes, every sum runs over the channels in order, as in plugins/reference/quantize.py. The
// build defines KVEDGE_SEAL_LOOPS as the name of the table. Nothing here may be inline with external linkage, or the
// linker could hand code for a newer CPU to an older one.
#include "seal_loops.h"

#include <cstring>

#include "codebook.h"

namespace kvedge {
namespace {

float absolute(float x) { return __builtin_fabsf(x); }

void clear(float* x, int64_t count) {
  for (int64_t t = 0; t < count; ++t) x[t] = 0.0f;
}

// One channel: codes and sums of T tokens, nearest of the Lloyd-Max levels.
template <Code CODE>
void code_channel(const float* __restrict z, int64_t page, const float* __restrict inverse, float* __restrict along,
                  float* __restrict spread, uint8_t* __restrict codes) {
  constexpr int kBits = bits_of(CODE), kLevels = 1 << (kBits - 1);
  const float *levels = levels_of(kBits), *edges = boundaries_of(kBits);
  for (int64_t t = 0; t < page; ++t) {
    const float y = z[t] * inverse[t], magnitude = absolute(y);
    int code = 0;
    float level = levels[0];
    for (int e = 0; e < kLevels - 1; ++e) {
      code += magnitude > edges[e] ? 1 : 0;
      level = magnitude > edges[e] ? levels[e + 1] : level;
    }
    level = y < 0.0f ? -level : level;
    along[t] = along[t] + z[t] * level;
    spread[t] = spread[t] + level * level;
    codes[t] = uint8_t(y < 0.0f ? code | kLevels : code);
  }
}

// The same of the uniform levels.
template <>
void code_channel<Code::kUniform>(const float* __restrict z, int64_t page, const float* __restrict inverse,
                                  float* __restrict along, float* __restrict spread, uint8_t* __restrict codes) {
  for (int64_t t = 0; t < page; ++t) {
    const float y = z[t] * inverse[t], steps = absolute(y) * kUniformSteps + 0.5f;
    const int code = int(steps < kUniformLast ? steps : kUniformLast), signed_code = y < 0.0f ? -code : code;
    const float level = float(signed_code) / kUniformSteps;
    along[t] = along[t] + z[t] * level;
    spread[t] = spread[t] + level * level;
    codes[t] = uint8_t(signed_code);
  }
}

int32_t bits_of_float(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of_bits(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// e4m3 of a level without a sign, as nearest_float of plugins/reference/quantize.py.
int32_t nearest_float(float magnitude) {
  constexpr float kCounter = kE4m3Normal / 8 * 0x1p23f;
  const int32_t most = bits_of_float(magnitude < kE4m3Last ? magnitude : kE4m3Last);
  const int32_t rounded = (most + ((1 << (kE4m3Dropped - 1)) - 1) + (most >> kE4m3Dropped & 1)) >> kE4m3Dropped;
  const int32_t normal = rounded - (bits_of_float(kE4m3Normal / 2) >> kE4m3Dropped);
  const int32_t small = bits_of_float(magnitude + kCounter) - bits_of_float(kCounter);
  return magnitude < kE4m3Normal ? small : normal;
}

// The level of such a code: as float32's its exponent is too small.
float level_of_float(int32_t code) { return float_of_bits(code << kE4m3Dropped) * kE4m3Exponent; }

// The same of floats.
template <>
void code_channel<Code::kE4m3>(const float* __restrict z, int64_t page, const float* __restrict inverse,
                               float* __restrict along, float* __restrict spread, uint8_t* __restrict codes) {
  for (int64_t t = 0; t < page; ++t) {
    const float y = z[t] * inverse[t];
    const int32_t code = nearest_float(absolute(y));
    const float magnitude = level_of_float(code), level = y < 0.0f ? -magnitude : magnitude;
    along[t] = along[t] + z[t] * level;
    spread[t] = spread[t] + level * level;
    codes[t] = uint8_t(y < 0.0f ? code | 128 : code);
  }
}

// By token: the sum of squares and the largest magnitude.
void measure(const float* __restrict z, int64_t dim, int64_t page, float* __restrict squares, float* __restrict largest) {
  clear(squares, page);
  clear(largest, page);
  for (int64_t d = 0; d < dim; ++d, z += page)
    for (int64_t t = 0; t < page; ++t) {
      const float magnitude = absolute(z[t]);
      squares[t] = squares[t] + z[t] * z[t];
      largest[t] = largest[t] < magnitude ? magnitude : largest[t];
    }
}

// Scales each token to norm sqrt(D) or, of 8 bits, to the last level.
template <Code CODE>
void encode_as(const float* block, int64_t dim, int64_t page, const Encoded& to) {
  constexpr bool kByLargest = bits_of(CODE) == 8;
  constexpr float kLast = CODE == Code::kE4m3 ? kE4m3Last : kUniformLast / kUniformSteps;
  measure(block, dim, page, to.squares, to.largest);
  const float target = kByLargest ? kLast : float(__builtin_sqrt(double(dim)));
  for (int64_t t = 0; t < page; ++t) {
    const float norm = __builtin_sqrtf(to.squares[t]);
    to.inverse[t] = norm > 0.0f ? target / (kByLargest ? to.largest[t] : norm) : 0.0f;
  }
  clear(to.along, page);
  clear(to.spread, page);
  for (int64_t d = 0; d < dim; ++d)
    code_channel<CODE>(block + d * page, page, to.inverse, to.along, to.spread, to.codes + d * page);
}

void encode(const float* block, int64_t dim, int64_t page, Code code, const Encoded& to) {
  if (code == Code::kNormal2) encode_as<Code::kNormal2>(block, dim, page, to);
  if (code == Code::kNormal3) encode_as<Code::kNormal3>(block, dim, page, to);
  if (code == Code::kNormal4) encode_as<Code::kNormal4>(block, dim, page, to);
  if (code == Code::kUniform) encode_as<Code::kUniform>(block, dim, page, to);
  if (code == Code::kE4m3) encode_as<Code::kE4m3>(block, dim, page, to);
}

}  // namespace

extern const SealLoops KVEDGE_SEAL_LOOPS;
const SealLoops KVEDGE_SEAL_LOOPS = {encode};

}  // namespace kvedge
