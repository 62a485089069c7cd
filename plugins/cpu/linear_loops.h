// The inner loops of linear, compiled once per instruction set from linear_loops.cc and picked at run time.
#ifndef KVEDGE_LINEAR_LOOPS_H
#define KVEDGE_LINEAR_LOOPS_H

#include <cstdint>

namespace kvedge {

// Rows of inputs as 8-bit integers: x = scale . codes, block by block.
struct QuantizedRows {
  const int8_t* codes;  // [count][blocks * 32]
  const float* scale;   // [count][blocks]
  const float* sum;     // [count][blocks]: scale times the sum of the block's codes
  int64_t count, blocks;
};

struct LinearLoops {
  // One row.
  void (*quantize)(const float* x, int64_t blocks, int8_t* codes, float* scale, float* sum);

  // y [count][16] = start [16] + x . one tile of weights; rows of y are `stride` apart
  void (*product)(const uint8_t* tile, int bits, const QuantizedRows& x, const float* start, float* y, int64_t stride);

  // y [rows][16] *= activation(gate [rows][16]); rows of y are `stride` apart
  void (*gate)(const float* gate, int64_t rows, int activation, float* y, int64_t stride);
};

const LinearLoops& linear_loops();

}  // namespace kvedge
#endif
