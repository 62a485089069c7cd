// append: write the new keys and values to their slots in the hot pool. Twin of plugins/reference/append.py.
#include <cstring>

#include "half.h"
#include "tokens.h"

namespace kvedge {
namespace {

void store_token(const kvedge_shape& s, const kvedge_step& step, int64_t b, int64_t head, int part, int64_t index,
                 Slot slot) {
  const float* x = (part ? step.v : step.k) + ((b * s.kv_heads + head) * s.new_tokens + index) * s.head_dim;
  const int64_t at = hot_index(s, step, b, slot, part, head);
  if (!s.hot_is_half) {
    std::memcpy(static_cast<float*>(step.hot) + at, x, sizeof(float) * s.head_dim);
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(step.hot) + at;
  for (int64_t d = 0; d < s.head_dim; ++d) out[d] = to_half(x[d]);
}

}  // namespace
}  // namespace kvedge

extern "C" void kvedge_append(const kvedge_shape* shape, const kvedge_step* step) {
  const kvedge::Geometry g(*shape, *step);
  const int64_t ring = g.ring_pages * g.page;
  for (int64_t b = 0; b < shape->batch; ++b) {
    const int64_t before = step->context[b], end = before + step->num_new[b];
    for (int64_t order = before; order < end; ++order) {
      // A chunk longer than the ring keeps its newest tokens: no slot is written twice.
      if (order >= g.sinks && order + ring < end) continue;
      for (int64_t head = 0; head < shape->kv_heads; ++head)
        for (int part = 0; part < 2; ++part)
          kvedge::store_token(*shape, *step, b, head, part, order - before, g.hot_slot(order));
    }
  }
}
