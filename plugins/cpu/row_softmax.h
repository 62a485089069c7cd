// What attention does with few queries, row by row: tokens are the lanes. Part of loops.cc; the twin of query_lanes.h.
#ifndef KVEDGE_ROW_SOFTMAX_H
#define KVEDGE_ROW_SOFTMAX_H

#include "exp.h"
#include "loops.h"
#include "query_lanes.h"

namespace kvedge {
namespace {

void rescale(const Lines& weights, const float* scale) {
  for (int64_t r = 0; r < weights.count; ++r)
    for (int64_t t = r * weights.lanes, lane = 0; lane < weights.lanes; lane += kWidth)
      store_floats(weights.x + t + lane, multiply(load_floats(weights.x + t + lane), load_floats(scale + lane)));
}

// a [stride] . b [stride], floats or halves
template <class Element>
KVEDGE_INLINE float dot(const float* a, const Element* b, int64_t stride) {
  Floats sums = no_floats();
  for (int64_t i = 0; i < stride; i += kWidth) sums = multiply_add(load_floats(a + i), load_floats(b + i), sums);
  return sum_of(sums);
}

void rescale_keys(const Lines& scores, const float* scale, const Rows& queries, const float* mean) {
  for (int64_t r = 0; r < scores.count; ++r) {
    const Floats offset = every_float(dot(queries.x + r * queries.stride, mean, queries.stride));
    for (int64_t t = r * scores.lanes, lane = 0; lane < scores.lanes; lane += kWidth)
      store_floats(scores.x + t + lane, multiply_add(load_floats(scores.x + t + lane), load_floats(scale + lane), offset));
  }
}

// A segment in which a row saw nothing changes nothing.
void merge(const float* from, int64_t stride, float* into) {
  const int64_t top = stride, total = top + 1;
  if (from[total] == 0.0f) return;
  const float high = into[top] < from[top] ? from[top] : into[top];
  const Shares shares = {fast_exp(every_float(into[top] - high)), fast_exp(every_float(from[top] - high))};
  for (int64_t d = 0; d < top; d += kWidth) merge_floats(into + d, from + d, shares);
  into[total] = first_of(merged(every_float(into[total]), shares.keep, every_float(from[total]), shares.add));
  into[top] = high;
}

// scores [lanes] outside [from, to) become -inf; returns the largest
KVEDGE_INLINE float mask(float* scores, int64_t from, int64_t to, int64_t lanes) {
  for (int64_t t = 0; t < from; ++t) scores[t] = -__builtin_inff();
  for (int64_t t = to; t < lanes; ++t) scores[t] = -__builtin_inff();
  Floats high = load_floats(scores);
  for (int64_t t = kWidth; t < lanes; t += kWidth) high = larger(high, load_floats(scores + t));
  return largest_of(high);
}

// scores [lanes] -> exp(score - top), where no score is above top; returns their sum
KVEDGE_INLINE float weigh_line(float* scores, int64_t lanes, float top) {
  Floats sums = no_floats();
  for (int64_t t = 0; t < lanes; t += kWidth) {
    const Floats weight = fast_exp(add(load_floats(scores + t), every_float(-top)));
    store_floats(scores + t, weight);
    sums = add(sums, weight);
  }
  return sum_of(sums);
}

KVEDGE_INLINE void shrink(float* sums, int64_t count, Floats by) {
  for (int64_t i = 0; i < count; i += kWidth) store_floats(sums + i, multiply(load_floats(sums + i), by));
}

// The sum and total of row r, where a larger score came.
KVEDGE_INLINE void raise_top(const Softmax& s, int64_t r, float largest) {
  if (!(s.top[r] < largest)) return;
  const Floats by = fast_exp(every_float(s.top[r] - largest));
  s.total[r] *= first_of(by);
  shrink(s.sum + r * s.sum_stride, s.sum_stride, by);
  s.top[r] = largest;
}

void weigh(const Lines& scores, const Softmax& s) {
  for (int64_t r = 0; r < scores.count; ++r) {
    float* line = scores.x + r * scores.lanes;
    if (s.from[r] >= s.to[r]) {
      for (int64_t t = 0; t < scores.lanes; t += kWidth) store_floats(line + t, no_floats());
      continue;
    }
    raise_top(s, r, mask(line, s.from[r], s.to[r], scores.lanes));
    s.total[r] += weigh_line(line, scores.lanes, s.top[r]);
  }
}

}  // namespace
}  // namespace kvedge
#endif
