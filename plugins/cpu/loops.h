// The inner loops of attend, compiled once per instruction set from loops.cc and picked at run time.
#ifndef KVEDGE_LOOPS_H
#define KVEDGE_LOOPS_H

#include <cstdint>

namespace kvedge {

constexpr int64_t kLanes = 16;  // floats in one vector; strides are multiples of it
constexpr int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct Loops {
  const char* name;

  // planes of `bits` bits, rows of row_bytes bytes each -> out [rows][stride], levels with signs
  void (*expand)(int bits, const uint8_t* planes, int64_t plane_bytes, int64_t rows, int64_t row_bytes, float* out,
                 int64_t stride);

  // out [rows][lanes] = q [rows][stride] . keys [dim][lanes]
  void (*score)(const float* q, int64_t rows, int64_t stride, int64_t dim, const float* keys, int64_t lanes, float* out);

  // out [rows][stride] += weights [rows][lanes] . values [tokens][stride]
  void (*accumulate)(const float* weights, int64_t rows, int64_t lanes, int64_t tokens, const float* values,
                     int64_t stride, float* out);

  // scores[t] = scores[t] * scale[t] + offset
  void (*rescale)(float* scores, const float* scale, float offset, int64_t tokens);

  // scores [lanes] -> exp(score - top) inside [lo, hi), 0 elsewhere; returns their sum
  float (*weigh)(float* scores, int64_t lo, int64_t hi, int64_t lanes, float top);

  float (*exp_of_negative)(float x);

  // a [stride] . b [stride]
  float (*dot)(const float* a, const float* b, int64_t stride);
};

// The best one for this CPU.
const Loops& loops();

}  // namespace kvedge
#endif
