// The softmax of a whole packed page that every row sees, for few rows: from what the keys' product left to the bytes
// that meet the values, without leaving the registers. What rescale_keys, weigh and weight_bytes do one after another,
// to the same bits. Part of loops.cc; needs dot_bytes of two full bytes.
#ifndef KVEDGE_WHOLE_PAGE_H
#define KVEDGE_WHOLE_PAGE_H

#include "byte_step.h"
#include "row_softmax.h"

namespace kvedge {
namespace {

constexpr int kPageVecs = int(kWholePage) / kWidth;

KVEDGE_INLINE void load_page(const uint16_t* halves, Floats (&out)[kPageVecs]) {
  repeat<kPageVecs>(KVEDGE_EACH(v) { out[v] = load_floats(halves + v * kWidth); });
}

KVEDGE_INLINE float largest_in(const Floats (&scores)[kPageVecs]) {
  Floats high = scores[0];
  repeat<kPageVecs - 1>(KVEDGE_EACH(v) { high = larger(high, scores[v + 1]); });
  return largest_of(high);
}

// x: scores -> exp(score - top); returns their sum
KVEDGE_INLINE float weigh_vectors(Floats (&x)[kPageVecs], float top) {
  Floats sums = no_floats();
  repeat<kPageVecs>(KVEDGE_EACH(v) {
    x[v] = fast_exp(add(x[v], every_float(-top)));
    sums = add(sums, x[v]);
  });
  return sum_of(sums);
}

KVEDGE_INLINE float bytes_of_page(const Floats (&weights)[kPageVecs], const Floats (&scale)[kPageVecs], uint8_t* bytes) {
  Floats scaled[kPageVecs];
  Extent extent;
  repeat<kPageVecs>(KVEDGE_EACH(v) {
    scaled[v] = multiply(weights[v], scale[v]);
    extent.add(scaled[v]);
  });
  const ByteStep by(extent, 255.0f);
  repeat<kPageVecs>(KVEDGE_EACH(v) {
    store_low_bytes(bytes + v * kWidth, nearest(multiply(scaled[v], every_float(by.inverse))));
  });
  return by.step;
}

void weigh_page(const Lines& scores, const PageScales& page, const Rows& queries, float unit, const Softmax& s,
                uint8_t* bytes, float* steps) {
  Floats key_scale[kPageVecs], value_scale[kPageVecs];
  load_page(page.keys, key_scale);
  load_page(page.values, value_scale);
  for (int64_t r = 0; r < scores.count; ++r) {
    const Floats offset = every_float(dot(queries.x + r * queries.stride, page.mean, queries.stride));
    const float* line = scores.x + r * scores.lanes;
    Floats x[kPageVecs];
    repeat<kPageVecs>(KVEDGE_EACH(v) { x[v] = multiply_add(load_floats(line + v * kWidth), key_scale[v], offset); });
    raise_top(s, r, largest_in(x));
    s.total[r] += weigh_vectors(x, s.top[r]);
    steps[r] = unit * bytes_of_page(x, value_scale, bytes + r * scores.lanes);
  }
}

}  // namespace
}  // namespace kvedge
#endif
