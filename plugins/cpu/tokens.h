// Keys and values of a row as they are stored: from the step's new tokens, the hot pool or a packed page.
#ifndef KVEDGE_TOKENS_H
#define KVEDGE_TOKENS_H

#include <cstring>

#include "geometry.h"
#include "loops.h"

namespace kvedge {

// Copies one exact token (part 0: K, 1: V) to out [D]. New tokens are rounded to the pool's type, so that
// results do not depend on the step in which a token arrived.
inline void load_token(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t b, int64_t head,
                       int part, int64_t order, float* out) {
  const int64_t dim = s.head_dim, index = order - step.context[b];
  if (index >= 0) {
    const float* x = (part ? step.v : step.k) + ((b * s.kv_heads + head) * s.new_tokens + index) * dim;
    if (s.hot_is_half)
      loops().round_to_half(x, dim, out);
    else
      std::memcpy(out, x, sizeof(float) * dim);
    return;
  }
  const int64_t at = hot_index(s, step, b, g.hot_slot(order), part, head);
  if (s.hot_is_half)
    loops().read_halves(static_cast<const uint16_t*>(step.hot) + at, dim, out);
  else
    std::memcpy(out, static_cast<const float*>(step.hot) + at, sizeof(float) * dim);
}

// One head of a packed page, where it lies.
struct PackedPage {
  Packed keys, values;
  const uint16_t *key_scales, *value_scales, *mean;

  // Floats: scales [T], mean [D].
  void read_scales(float* key_scale, float* value_scale, float* page_mean) const {
    loops().read_halves(key_scales, keys.lanes, key_scale);
    loops().read_halves(value_scales, keys.lanes, value_scale);
    loops().read_halves(mean, values.lanes, page_mean);
  }
};

inline PackedPage packed_page(const kvedge_shape& s, const kvedge_step& step, int64_t b, int64_t number, int64_t head) {
  const PackedLayout at = layout_of(s);
  const int32_t* words = packed_head(s, step, b, number, head);
  const auto halves = [words](int64_t offset) { return reinterpret_cast<const uint16_t*>(words + offset); };
  return {{words, s.k_bits, s.page, s.head_dim}, {words + at.v_codes, s.v_bits, s.head_dim, s.page},
          halves(at.k_scales), halves(at.v_scales), halves(at.k_mean)};
}

}  // namespace kvedge
#endif
