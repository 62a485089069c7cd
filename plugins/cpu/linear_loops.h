// The inner loops of linear, compiled once per instruction set from linear_loops.cc and picked at run time.
#ifndef KVEDGE_LINEAR_LOOPS_H
#define KVEDGE_LINEAR_LOOPS_H

#include <cstdint>

namespace kvedge {

// Rows of inputs as 8-bit integers: x = scale . codes, block by block. Rows lie in groups that a product takes
// together. What comes after the last whole group lies in groups of one, or in a group with room for more rows. Of a group, codes are [block][four inputs][row][4]
// (for AMX [block][row][32]), scale and sum (scale times the sum of the block's codes) [block][row].
struct QuantizedRows {
  const int8_t* codes;
  const float* scale;
  const float* sum;
  int64_t count, blocks;
};

// Where a row of a group goes; each group begins where those of the rows before it end.
struct RowPlace {
  int8_t* codes;
  float* scale;
  float* sum;
  int64_t row, rows;  // in the group
};

struct LinearLoops {
  int64_t group_rows;
  int64_t least_rows;  // that are worth a group with room for more

  // One row.
  void (*quantize)(const float* x, int64_t blocks, const RowPlace& to);

  // y [count][16] = start [16] + x . one tile of weights; rows of y are `stride` apart
  void (*product)(const uint8_t* tile, int bits, const QuantizedRows& x, const float* start, float* y, int64_t stride);

  // y [rows][16] *= activation(gate [rows][16]); rows of y are `stride` apart
  void (*gate)(const float* gate, int64_t rows, int activation, float* y, int64_t stride);
};

const LinearLoops& linear_loops();

}  // namespace kvedge
#endif
