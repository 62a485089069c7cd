// The inner loops of attend, compiled once per instruction set from loops.cc and picked at run time.
//
// A lane is one element of a result, depth is what is summed over: K lanes are tokens, V lanes channels. Sums run
// over the depth in order, in every loop and for any number of rows, so that a result has the same bits
// whichever loop made it.
#ifndef KVEDGE_LOOPS_H
#define KVEDGE_LOOPS_H

#include <cstdint>

#include "codebook.h"

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
  Code code;
  int64_t lanes, depth;
};

// Rows of left operands in bytes: of queries with a sign, of weights without. A result is factor * (start + x . levels).
struct ByteRows {
  const uint8_t* x;
  int64_t count, stride;
  const float* factor;
  const int32_t* start;
};

// Rows of scores or weights, changed where they lie: [count][lanes], whole vectors.
struct Lines {
  float* x;
  int64_t count, lanes;
};

// The online softmax of some rows (Milakov and Gimelshein 2018), and what each sees of a tile: lanes [from, to).
struct Softmax {
  const int32_t *from, *to;
  float *top, *total;
  float* sum;  // [rows][sum_stride]: shrinks where a larger score comes
  int64_t sum_stride;
};

// Scales of a packed page, one a token, and its mean by channel, in fp16.
struct PageScales {
  const uint16_t *keys, *values, *mean;
};

constexpr int64_t kWholePage = 64;  // tokens of the page that most caches have: it has loops of its own

// Products in integers: queries and weights in 8 bits, levels too. [0] for values, [1] for keys.
struct ByteLoops {
  // tile [depth / 4][padded(lanes)] = levels, four of a lane in a word
  void (*expand[2])(const Packed& codes, int32_t* tile);

  // y [rows][lanes] += result of a tile, or of codes where they lie, of whole groups, for at most direct_rows rows
  void (*product[2])(const int32_t* tile, int64_t lanes, int64_t depth, const ByteRows& x, float* y);
  void (*packed_product[2])(const Packed& codes, const ByteRows& x, float* y);

  // bytes of x [count], which has zeros behind it up to a whole vector; step: what one stands for
  void (*query)(const float* x, int64_t count, uint8_t* bytes, float* step, int32_t* start);

  // bytes [rows][lanes] of weights times scale [lanes]; steps [rows]: what one stands for, times `unit`
  void (*weights)(const Lines& weights, const float* scale, float unit, uint8_t* bytes, float* steps);

  // Of kWholePage tokens that every row sees, scores as products left them: rescale_keys, weigh and weights in one.
  void (*weigh_page)(const Lines& scores, const PageScales& page, const Rows& queries, float unit, const Softmax& softmax,
                     uint8_t* bytes, float* steps);
};

// Many queries, which are the lanes of all these, whole vectors. The sum [dim][lanes] shrinks where a larger score comes.
struct QueryLanes {
  int64_t lanes, dim;
  const int32_t *from, *to;  // [lanes]: what each sees of a tile
  float *top, *total, *sum;
};

// Bytes of some lanes, four of a lane in a word, and what they stand for: factor * (start + product).
struct LaneBytes {
  int32_t* words;
  float* factor;
  int32_t* start;
};

constexpr int64_t kRowsBehind = 15;   // may be read behind the last row, and written behind the last sums
constexpr int64_t kDepthBytes = 64;  // zeros fill rows to a multiple; any words may stand behind the last ones

// Rows of bytes that meet lanes of words; count is a multiple of 8, stride of 64.
struct ByteMatrix {
  const uint8_t* x;
  int64_t count, depth, stride;
};

// As ByteLoops, for many queries.
struct ManyByteLoops {
  // Of queries [dim][lanes], with a sign; of weights [tokens][lanes] times scale [tokens], without (and no start).
  void (*queries)(const float* x, int64_t dim, int64_t lanes, float unit, const LaneBytes& to);
  void (*weights)(float* weights, int64_t tokens, int64_t lanes, const float* scale, float unit, const LaneBytes& to);

  // sums [count][lanes] = rows . words. [0]: words have the sign, [1]: rows have it
  void (*sums[2])(const ByteMatrix& rows, const int32_t* words, int64_t lanes, int32_t* sums);

  // scores [tokens][lanes] = factor * (start + sums) * scale [tokens] + offsets [lanes]
  void (*scores)(const int32_t* sums, int64_t tokens, int64_t lanes, const LaneBytes& queries, const float* scale,
                 const float* offsets, float* scores);

  // y [dim][lanes] += factor * sums
  void (*add_sums)(const int32_t* sums, int64_t dim, int64_t lanes, const float* factor, float* y);

  // Around calls of sums.
  void (*take_tiles)();
  void (*give_tiles)();
};

// What Loops does row by row, for many queries.
struct ManyLoops {
  // Null where packed pages are read in floats.
  const ManyByteLoops* bytes;

  // offsets [lanes] = queries [dim][lanes] . mean [dim]
  void (*mean)(const float* queries, const float* mean, int64_t dim, int64_t lanes, float* offsets);

  // scores [tokens][lanes] = scores * scale [tokens] + offsets [lanes]
  void (*rescale_keys)(float* scores, int64_t tokens, int64_t lanes, const float* scale, const float* offsets);
  void (*rescale)(float* weights, int64_t tokens, int64_t lanes, const float* scale);

  // scores [tokens][lanes] become weights
  void (*weigh)(float* scores, int64_t tokens, const QueryLanes& queries);

  void (*merge)(const QueryLanes& from, const QueryLanes& into);

  // x [power][block] in place: norm times the Hadamard transform over its first axis
  void (*butterfly)(float* x, int64_t power, int64_t block, float norm);
};

// Tokens [count][dim] of one head where they lie in the hot pool. While they are read, as many bytes are asked for from
// `soon` on, so that memory answers in time.
template <class Element>
struct PoolLoops {
  // out [dim][stride] = tokens, transposed; count and dim are multiples of 8
  void (*keys)(const Element* tokens, int64_t count, int64_t dim, float* out, int64_t stride, const void* soon);

  // y [rows][dim] += x [rows][count] . tokens; dim is whole vectors
  void (*values)(const Element* tokens, int64_t count, int64_t dim, const Rows& x, float* y, const void* soon);
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

  PoolLoops<float> floats;
  PoolLoops<uint16_t> halves;

  // out = x rounded to fp16 and back, or the values of halves
  void (*round_to_half)(const float* x, int64_t count, float* out);
  void (*read_halves)(const uint16_t* halves, int64_t count, float* out);

  // weights = weights * scale [lanes]
  void (*rescale)(const Lines& weights, const float* scale);

  // scores = scores * scale [lanes] + query . mean
  void (*rescale_keys)(const Lines& scores, const float* scale, const Rows& queries, const float* mean);

  // scores become weights, exp(score - top)
  void (*weigh)(const Lines& scores, const Softmax& softmax);

  // Sums of a segment, laid out as Partial in attend.cc, into those so far
  void (*merge)(const float* from, int64_t stride, float* into);

  // The exclusive or of words, a multiple of 64: nothing but reading.
  int32_t (*read)(const int32_t* words, int64_t count);

  ManyLoops many;
};

// The best one for this CPU, or the one that the environment variable KVEDGE_CPU_ISA names.
const Loops& loops();

// What is wrong with KVEDGE_CPU_ISA, or nullptr.
const char* loops_error();

}  // namespace kvedge
#endif
