// The inner loops of linear, compiled once per instruction set from linear_loops.cc and picked at run time.
#ifndef KVEDGE_LINEAR_LOOPS_H
#define KVEDGE_LINEAR_LOOPS_H

#include <cstdint>

namespace kvedge {

// Rows of inputs as 8-bit integers: x = scale . codes, block by block. Rows lie in groups that a product takes
// together; what comes after the last whole group lies in groups of one. Of a group, codes are [block][four
// inputs][row][4], scale and sum (scale times the sum of the block's codes) [block][row].
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

// Rows of inputs rounded to bfloat16: groups, the last with room for more rows, of [block][row][32].
struct BrainRows {
  const uint16_t* codes;
  int64_t count, blocks;
};

// One tile of weights, and where its products go: y [rows][16], rows `stride` apart, = start [16] + x . tile
struct Target {
  const uint8_t* tile;
  const float* start;
  float* y;
  int64_t stride;
};

// Many rows, where there are matrix units for them.
struct ManyRowsLoops {
  int64_t group_rows;  // the least that are worth it

  // One row, to its place in the first block of its group.
  void (*round)(const float* x, int64_t blocks, uint16_t* out);

  // One target or two.
  void (*product)(const Target* targets, int count, int bits, const BrainRows& x);
};

struct LinearLoops {
  int64_t group_rows;

  // One row, count a whole number of blocks: sum = x (+ skip, where there is one), then
  // out = gamma * sum / sqrt(mean(sum^2) + epsilon)
  void (*normalize)(const float* x, const float* skip, const float* gamma, float epsilon, int64_t count, float* sum,
                    float* out);

  // One row.
  void (*quantize)(const float* x, int64_t blocks, const RowPlace& to);

  void (*product)(const Target& target, int bits, const QuantizedRows& x);

  // y [rows][16] *= activation(gate [rows][16]); rows of y are `stride` apart
  void (*gate)(const float* gate, int64_t rows, int activation, float* y, int64_t stride);

  const ManyRowsLoops* many;  // or null
};

const LinearLoops& linear_loops();

}  // namespace kvedge
#endif
