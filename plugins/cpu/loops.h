// The inner loops of attend, compiled once per instruction set from loops.cc and picked at run time.
//
// A lane is one element of a result, depth is what is summed over: K lanes are tokens, V lanes channels. Sums run
// over the depth in order, in every loop and for any number of rows, so that a result has the same bits
// whichever loop made it.
#ifndef KVEDGE_LOOPS_H
#define KVEDGE_LOOPS_H

#include <cstdint>

namespace kvedge {

constexpr int64_t kLanes = 16;  // floats in the widest vector; strides of tiles are multiples of it
constexpr int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Rows of left operands.
struct Rows {
  const float* x;
  int64_t count, stride;
};

// Codes as they lie in a page (kvedge/layout.h).
struct Packed {
  const int32_t* words;
  int bits;
  int64_t lanes, depth;
};

// Rows of left operands in bytes: of queries with a sign, of weights without. A result is factor * (start + x . levels).
struct ByteRows {
  const uint8_t* x;
  int64_t count, stride;
  const float* factor;
  const int32_t* start;
};

// Products in integers: queries and weights in 8 bits, levels too. [0] for values, [1] for keys.
struct ByteLoops {
  // tile [depth / 4][padded(lanes)] = levels, four of a lane in a word
  void (*expand[2])(const Packed& codes, int32_t* tile);

  // y [rows][lanes] += result of a tile, or of codes where they lie, of whole groups, for at most direct_rows rows
  void (*product[2])(const int32_t* tile, int64_t lanes, int64_t depth, const ByteRows& x, float* y);
  void (*packed_product[2])(const Packed& codes, const ByteRows& x, float* y);

  // bytes of x [count], which has zeros behind it up to a whole vector; step: what one stands for
  void (*query)(const float* x, int64_t count, uint8_t* bytes, float* step, int32_t* start);
  void (*weights)(const float* x, int64_t count, uint8_t* bytes, float* step);
};

struct Loops {
  // Null where packed pages are read in floats.
  const ByteLoops* bytes;


  // tile [depth][padded(lanes)] = levels, with signs
  void (*expand)(const Packed& codes, float* tile);

  // Up to so many rows read codes faster where they lie than after expand.
  int direct_rows;

  // y [rows][padded(lanes)] += x [rows][depth] . levels [depth][lanes], for at most direct_rows rows
  void (*packed_product)(const Packed& codes, const Rows& x, float* y);

  // y [rows][lanes] += x [rows][depth] . tile [depth][lanes]
  void (*product)(const float* tile, int64_t lanes, int64_t depth, const Rows& x, float* y);

  // out [columns][stride] = in [rows][columns], transposed; rows and columns are multiples of 8
  void (*transpose)(const float* in, int64_t rows, int64_t columns, float* out, int64_t stride);

  // out = x rounded to fp16 and back, or the values of halves
  void (*round_to_half)(const float* x, int64_t count, float* out);
  void (*read_halves)(const uint16_t* halves, int64_t count, float* out);

  // scores[t] = scores[t] * scale[t] + offset
  void (*rescale)(float* scores, const float* scale, float offset, int64_t tokens);

  // scores [lanes] outside [lo, hi) become -inf; returns the largest
  float (*mask)(float* scores, int64_t lo, int64_t hi, int64_t lanes);

  // scores [lanes] -> exp(score - top), where no score is above top; returns their sum
  float (*weigh)(float* scores, int64_t lanes, float top);

  float (*exp_of_negative)(float x);

  // a [stride] . b [stride]
  float (*dot)(const float* a, const float* b, int64_t stride);

  // The exclusive or of words, a multiple of 64: nothing but reading.
  int32_t (*read)(const int32_t* words, int64_t count);
};

// The best one for this CPU, or the one that the environment variable KVEDGE_CPU_ISA names.
const Loops& loops();

// What is wrong with KVEDGE_CPU_ISA, or nullptr.
const char* loops_error();

}  // namespace kvedge
#endif
