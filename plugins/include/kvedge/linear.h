/* Products with weights in blocks of 4 or 8 bits: the C twin of targets/block_weights.py (layout) and of
   plugins/reference/linear.py (arithmetic). */
#ifndef KVEDGE_LINEAR_H
#define KVEDGE_LINEAR_H

#include <stdint.h>

#include "kvedge/paged_attention.h"

#ifdef __cplusplus
namespace kvedge {

constexpr int64_t kBlock = 32;  // inputs that share a scale and a minimum
constexpr int64_t kTile = 16;   // outputs that lie side by side

constexpr int64_t block_code_bytes(int bits) { return kBlock * kTile * bits / 8; }
constexpr int64_t block_bytes(int bits) { return block_code_bytes(bits) + 2 * 2 * kTile; }
constexpr int64_t tiles_of(int64_t outputs) { return (outputs + kTile - 1) / kTile; }

static_assert(block_bytes(4) == 320 && block_bytes(8) == 576, "whole cache lines");

}  // namespace kvedge

extern "C" {
#endif

enum { KVEDGE_NO_ACTIVATION = 0, KVEDGE_SILU = 1, KVEDGE_GELU_TANH = 2 };

/* y [rows][outputs] = x [rows][inputs] . weights + bias; with an activation, whole tiles of a gate stand in front of
   the weights: y = activation(x . gate) * (x . weights). With gamma, what meets the weights is not x, but
   gamma * s / sqrt(mean(s^2) + epsilon), where s = x + skip. */
typedef struct kvedge_linear {
  const uint8_t* weights; /* [tiles][inputs / 32][block bytes] */
  const float* x;
  const float* bias; /* [outputs], or null */
  float* y;
  const float* gamma; /* [inputs], or null */
  const float* skip;  /* [rows][inputs], or null; only with gamma */
  float* sum;         /* [rows][inputs] = s, or null; only with gamma */
  int64_t rows, inputs, outputs;
  int32_t bits, activation;
  float epsilon;
} kvedge_linear;

/* Bytes of the scratch that one product needs. */
KVEDGE_API int64_t kvedge_linear_scratch(const kvedge_linear* linear);

/* From so many rows on, inputs and weights are rounded to bfloat16 and meet on matrix units; 0: never, here. */
KVEDGE_API int64_t kvedge_linear_many_rows(void);

/* In this order, each with every task before the next; tasks of one kind may run side by side. */
KVEDGE_API int64_t kvedge_linear_quantize_tasks(const kvedge_linear* linear);
KVEDGE_API void kvedge_linear_quantize_task(const kvedge_linear* linear, void* scratch, int64_t task);
KVEDGE_API int64_t kvedge_linear_product_tasks(const kvedge_linear* linear);
KVEDGE_API void kvedge_linear_product_task(const kvedge_linear* linear, const void* scratch, int64_t task);

/* out [inputs] = the weights of one output, as they are */
KVEDGE_API void kvedge_linear_row(const uint8_t* weights, int32_t bits, int64_t inputs, int64_t row, float* out);

#ifdef __cplusplus
}
#endif
#endif
