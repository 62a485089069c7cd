// Inner loops of seal. Built once per instruction set, without fused multiply-add, and left to the compiler's
// vectors: tokens are the lanes, every sum runs over the channels in order, as in plugins/reference/quantize.py. The
// build defines KVEDGE_SEAL_LOOPS as the name of the table. Nothing here may be inline with external linkage, or the
// linker could hand code for a newer CPU to an older one.
#include "seal_loops.h"

#include "codebook.h"

namespace kvedge {
namespace {

float absolute(float x) { return __builtin_fabsf(x); }

void clear(float* x, int64_t count) {
  for (int64_t t = 0; t < count; ++t) x[t] = 0.0f;
}

// One channel: codes and sums of T tokens, nearest of the Lloyd-Max levels.
template <int BITS>
void code_channel(const float* __restrict z, int64_t page, const float* __restrict inverse, float* __restrict along,
                  float* __restrict spread, uint8_t* __restrict codes) {
  constexpr int kLevels = 1 << (BITS - 1);
  const float *levels = levels_of(BITS), *edges = boundaries_of(BITS);
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
void code_channel<kUniformBits>(const float* __restrict z, int64_t page, const float* __restrict inverse,
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

template <int BITS>
void encode_bits(const float* block, int64_t dim, int64_t page, const Encoded& to) {
  constexpr bool kUniform = BITS == kUniformBits;
  measure(block, dim, page, to.squares, to.largest);
  const float target = kUniform ? kUniformLast / kUniformSteps : float(__builtin_sqrt(double(dim)));
  for (int64_t t = 0; t < page; ++t) {
    const float norm = __builtin_sqrtf(to.squares[t]);
    to.inverse[t] = norm > 0.0f ? target / (kUniform ? to.largest[t] : norm) : 0.0f;
  }
  clear(to.along, page);
  clear(to.spread, page);
  for (int64_t d = 0; d < dim; ++d)
    code_channel<BITS>(block + d * page, page, to.inverse, to.along, to.spread, to.codes + d * page);
}

void encode(const float* block, int64_t dim, int64_t page, int bits, const Encoded& to) {
  if (bits == 2) encode_bits<2>(block, dim, page, to);
  if (bits == 3) encode_bits<3>(block, dim, page, to);
  if (bits == 4) encode_bits<4>(block, dim, page, to);
  if (bits == 8) encode_bits<8>(block, dim, page, to);
}

}  // namespace

extern const SealLoops KVEDGE_SEAL_LOOPS;
const SealLoops KVEDGE_SEAL_LOOPS = {encode};

}  // namespace kvedge
