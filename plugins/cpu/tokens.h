// Keys and values of a row as they are stored: from the step's new tokens, or from the hot pool.
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

}  // namespace kvedge
#endif
