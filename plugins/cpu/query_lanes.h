// What attention does with many queries of one kv head at a time: they are the lanes, so that nothing is summed or
// compared within a vector. Part of loops.cc. For one query the arithmetic, and its order, is that of the loops where
// tokens are the lanes: results have the same bits.
#ifndef KVEDGE_QUERY_LANES_H
#define KVEDGE_QUERY_LANES_H

#include "byte_step.h"
#include "exp.h"
#include "loops.h"

namespace kvedge {
namespace {

// As sum_of a vector whose lanes are these sums.
KVEDGE_INLINE Floats total_of(Floats (&sums)[kWidth]) {
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] = add(sums[i], sums[i + half]);
  return sums[0];
}

// body(i, n) for n = 0 ... count - 1, i constant and n modulo kWidth.
template <class Body>
KVEDGE_INLINE void each_modulo_width(int64_t count, Body body) {
  int64_t n = 0;
  for (; n + kWidth <= count; n += kWidth) repeat<kWidth>(KVEDGE_EACH(i) { body(i, n + i); });
  repeat<kWidth>(KVEDGE_EACH(i) {
    if (n + i < count) body(i, n + i);
  });
}

// offsets [lanes] = queries [dim][lanes] . mean [dim]
void mean_of_queries(const float* queries, const float* mean, int64_t dim, int64_t lanes, float* offsets) {
  for (int64_t lane = 0; lane < lanes; lane += kWidth) {
    Floats sums[kWidth];
    repeat<kWidth>(KVEDGE_EACH(i) { sums[i] = no_floats(); });
    each_modulo_width(dim, [&](auto i, int64_t d) __attribute__((always_inline)) {
      sums[i] = multiply_add(load_floats(queries + d * lanes + lane), every_float(mean[d]), sums[i]);
    });
    store_floats(offsets + lane, total_of(sums));
  }
}

// scores [tokens][lanes] = scores * scale [tokens] + offsets [lanes]
void rescale_queries(float* scores, int64_t tokens, int64_t lanes, const float* scale, const float* offsets) {
  for (int64_t t = 0; t < tokens; ++t, scores += lanes) {
    const Floats by = every_float(scale[t]);
    for (int64_t lane = 0; lane < lanes; lane += kWidth)
      store_floats(scores + lane, multiply_add(load_floats(scores + lane), by, load_floats(offsets + lane)));
  }
}

// What a query does not see of a tile.
KVEDGE_INLINE void hide(float* scores, int64_t tokens, const QueryLanes& q) {
  for (int64_t lane = 0; lane < q.lanes; ++lane) {
    for (int64_t t = 0; t < q.from[lane]; ++t) scores[t * q.lanes + lane] = -__builtin_inff();
    for (int64_t t = q.to[lane]; t < tokens; ++t) scores[t * q.lanes + lane] = -__builtin_inff();
  }
}

// The sum of some lanes, where a larger score came.
KVEDGE_INLINE void shrink_lanes(const QueryLanes& q, int64_t lane, Floats by) {
  for (int64_t d = 0; d < q.dim; ++d) {
    float* sum = q.sum + d * q.lanes + lane;
    store_floats(sum, multiply(load_floats(sum), by));
  }
}

// Over x [count][stride], lane by lane, and over `start`.
KVEDGE_INLINE Floats largest_of_column(const float* x, int64_t count, int64_t stride, Floats start) {
  constexpr int kApart = 4;  // chains, so that none waits for itself
  Floats high[kApart] = {start, start, start, start};
  int64_t n = 0;
  for (; n + kApart <= count; n += kApart)
    repeat<kApart>(KVEDGE_EACH(i) { high[i] = larger(high[i], load_floats(x + (n + i) * stride)); });
  for (; n < count; ++n) high[0] = larger(high[0], load_floats(x + n * stride));
  return larger(larger(high[0], high[1]), larger(high[2], high[3]));
}

// What is added to scores before exp, by the largest: any number where nothing was seen, as all of them are -inf.
KVEDGE_INLINE Floats minus_top(Floats high) {
  return multiply(larger(every_float(-0x1p127f), high), every_float(-1.0f));
}

void weigh_queries(float* scores, int64_t tokens, const QueryLanes& q) {
  hide(scores, tokens, q);
  for (int64_t lane = 0; lane < q.lanes; lane += kWidth) {
    float* x = scores + lane;
    const Floats before = load_floats(q.top + lane);
    const Floats high = largest_of_column(x, tokens, q.lanes, before);
    store_floats(q.top + lane, high);
    const Floats minus = minus_top(high);
    if (!same_floats(before, high)) {
      const Floats by = fast_exp(add(before, minus));
      store_floats(q.total + lane, multiply(load_floats(q.total + lane), by));
      shrink_lanes(q, lane, by);
    }
    Floats sums[kWidth];
    repeat<kWidth>(KVEDGE_EACH(i) { sums[i] = no_floats(); });
    each_modulo_width(tokens, [&](auto i, int64_t t) __attribute__((always_inline)) {
      float* at = x + t * q.lanes;
      const Floats weight = fast_exp(add(load_floats(at), minus));
      store_floats(at, weight);
      sums[i] = add(sums[i], weight);
    });
    store_floats(q.total + lane, add(load_floats(q.total + lane), total_of(sums)));
  }
}

// weights [tokens][lanes] = weights * scale [tokens]
void rescale_weights(float* weights, int64_t tokens, int64_t lanes, const float* scale) {
  for (int64_t t = 0; t < tokens; ++t, weights += lanes)
    for (int64_t lane = 0; lane < lanes; lane += kWidth)
      store_floats(weights + lane, multiply(load_floats(weights + lane), every_float(scale[t])));
}

// Into's share and from's of sums that are merged, where from saw something.
struct Shares {
  Floats keep, add;
};

KVEDGE_INLINE Floats merged(Floats into, Floats keep, Floats from, Floats share) {
  return multiply_add(into, keep, multiply(from, share));
}

KVEDGE_INLINE void merge_floats(float* into, const float* from, const Shares& shares) {
  store_floats(into, merged(load_floats(into), shares.keep, load_floats(from), shares.add));
}

void merge_queries(const QueryLanes& from, const QueryLanes& into) {
  for (int64_t lane = 0; lane < into.lanes; lane += kWidth) {
    const Floats a = load_floats(into.top + lane), b = load_floats(from.top + lane), high = larger(a, b);
    const Floats minus = minus_top(high);
    const Shares shares = {fast_exp(add(a, minus)), fast_exp(add(b, minus))};
    for (int64_t d = 0; d < into.dim; ++d) {
      const int64_t at = d * into.lanes + lane;
      merge_floats(into.sum + at, from.sum + at, shares);
    }
    merge_floats(into.total + lane, from.total + lane, shares);
    store_floats(into.top + lane, high);
  }
}

// x [power][block] in place: norm times the Hadamard transform over its first axis; block is whole vectors.
void butterfly(float* x, int64_t power, int64_t block, float norm) {
  for (int64_t step = 1; step < power; step *= 2)
    for (int64_t first = 0; first < power; first += 2 * step) {
      float *low = x + first * block, *high = low + step * block;
      for (int64_t i = 0; i < step * block; i += kWidth) {
        const Floats a = load_floats(low + i), b = load_floats(high + i);
        store_floats(low + i, add(a, b));
        store_floats(high + i, subtract(a, b));
      }
    }
  for (int64_t i = 0; i < power * block; i += kWidth) store_floats(x + i, multiply(load_floats(x + i), every_float(norm)));
}

}  // namespace
}  // namespace kvedge
#endif
