// Packed pages and many queries, in integers: queries and weights become bytes, four of a lane in a word. Part of
// loops.cc; beside query_lanes.h, and needs dot_bytes of two full bytes.
#ifndef KVEDGE_QUERY_BYTES_H
#define KVEDGE_QUERY_BYTES_H

#include "byte_levels.h"
#include "query_lanes.h"

namespace kvedge {
namespace {

// Bytes a, b, c, d from the lowest.
KVEDGE_INLINE Words join_bytes(const Words (&code)[4]) {
  const Words low = choose(0xffu, code[0], left<8>(code[1])), high = choose(0xffu, code[2], left<8>(code[3]));
  return choose(0xffffu, low, left<16>(high));
}

// words [count / 4][lanes] of x [count][lanes], count a multiple of 4; returns the sums of the codes.
KVEDGE_INLINE Words to_bytes(const float* x, int64_t count, int64_t lanes, Floats inverse, int32_t* words) {
  Words sums = every_word(0);
  for (int64_t i = 0; i < count; i += 4, words += lanes) {
    Words code[4];
    repeat<4>(KVEDGE_EACH(n) {
      code[n] = nearest(multiply(load_floats(x + (i + n) * lanes), inverse));
      sums = add_each(sums, code[n]);
    });
    store_words(words, join_bytes(code));
  }
  return sums;
}

void bytes_of_queries(const float* x, int64_t dim, int64_t lanes, float unit, const LaneBytes& to) {
  for (int64_t lane = 0; lane < lanes; lane += kWidth) {
    Extent extent;
    for (int64_t d = 0; d < dim; ++d) extent.add_signed(load_floats(x + d * lanes + lane));
    const ByteSteps by(extent, 127.0f);
    const Words sums = to_bytes(x + lane, dim, lanes, by.inverse, to.words + lane);
    store_words(to.start + lane, minus_128_times(sums));
    store_floats(to.factor + lane, multiply(by.step, every_float(unit)));
  }
}

void bytes_of_weights(float* weights, int64_t tokens, int64_t lanes, const float* scale, float unit, const LaneBytes& to) {
  for (int64_t lane = 0; lane < lanes; lane += kWidth) {
    Extent extent;
    for (int64_t t = 0; t < tokens; ++t) {
      float* at = weights + t * lanes + lane;
      const Floats scaled = multiply(load_floats(at), every_float(scale[t]));
      store_floats(at, scaled);
      extent.add(scaled);
    }
    const ByteSteps by(extent, 255.0f);
    to_bytes(weights + lane, tokens, lanes, by.inverse, to.words + lane);
    store_floats(to.factor + lane, multiply(by.step, every_float(unit)));
  }
}

void scores_of_sums(const int32_t* sums, int64_t tokens, int64_t lanes, const LaneBytes& q, const float* scale,
                    const float* offsets, float* scores) {
  for (int64_t t = 0; t < tokens; ++t, sums += lanes, scores += lanes) {
    const Floats by = every_float(scale[t]);
    for (int64_t lane = 0; lane < lanes; lane += kWidth) {
      const Words whole = add_each(load_words(sums + lane, kWidth), load_words(q.start + lane, kWidth));
      const Floats score = multiply(to_floats(whole), load_floats(q.factor + lane));
      store_floats(scores + lane, multiply_add(score, by, load_floats(offsets + lane)));
    }
  }
}

void add_sums(const int32_t* sums, int64_t dim, int64_t lanes, const float* factor, float* y) {
  for (int64_t d = 0; d < dim; ++d, sums += lanes, y += lanes)
    for (int64_t lane = 0; lane < lanes; lane += kWidth)
      store_floats(y + lane, multiply_add(to_floats(load_words(sums + lane, kWidth)), load_floats(factor + lane),
                                          load_floats(y + lane)));
}

#ifndef __AMX_INT8__
void take_tiles() {}
void give_tiles() {}

template <bool SIGNED_ROWS, int VECS>
KVEDGE_INLINE void sums_of_lanes(const ByteMatrix& rows, const int32_t* words, int64_t lanes, int64_t row, int32_t* sums) {
  constexpr int kRows = 4;
  constexpr int32_t kZeros[kRows] = {};
  ByteSums<kRows, VECS> sum(kZeros);
  for (int64_t four = 0; four < rows.depth / 4; ++four) {
    Words levels[VECS];
    repeat<VECS>(KVEDGE_EACH(v) { levels[v] = load_words(words + four * lanes + v * kWidth, kWidth); });
    sum.template add<SIGNED_ROWS>(rows.x + row * rows.stride + 4 * four, rows.stride, levels);
  }
  repeat<kRows * VECS>(KVEDGE_EACH(n) {
    store_words(sums + (row + n / VECS) * lanes + n % VECS * kWidth, sum.sum[n / VECS][n % VECS]);
  });
}

template <bool SIGNED_ROWS>
void sums_of_bytes(const ByteMatrix& rows, const int32_t* words, int64_t lanes, int32_t* sums) {
  for (int64_t row = 0; row < rows.count; row += 4) {
    int64_t lane = 0;
    for (; lane + 4 * kWidth <= lanes; lane += 4 * kWidth)
      sums_of_lanes<SIGNED_ROWS, 4>(rows, words + lane, lanes, row, sums + lane);
    for (; lane < lanes; lane += kWidth) sums_of_lanes<SIGNED_ROWS, 1>(rows, words + lane, lanes, row, sums + lane);
  }
}
#endif

}  // namespace
}  // namespace kvedge
#endif
