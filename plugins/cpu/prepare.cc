// prepare: new queries, keys and values leave the layout of the products that made them, and queries and keys get
// their rotary embedding. Twin of plugins/reference/prepare.py.
#include <algorithm>
#include <cstring>

#include "kvedge/paged_attention.h"
#include "turn.h"

namespace kvedge {
namespace {

constexpr int64_t kTokensATask = 16;

// Heads of one token: x [heads][D], out [heads][N][D] at the token's place.
void place(const kvedge_shape& s, const float* x, int64_t heads, const float* cos, const float* sin, float* out) {
  for (int64_t head = 0; head < heads; ++head, x += s.head_dim, out += s.new_tokens * s.head_dim) {
    if (cos != nullptr)
      turn(s, cos, sin, 1.0f, x, out);
    else
      std::memcpy(out, x, sizeof(float) * s.head_dim);
  }
}

}  // namespace
}  // namespace kvedge

extern "C" {

int64_t kvedge_prepare_tasks(const kvedge_shape* shape) {
  const int64_t tokens = int64_t(shape->batch) * shape->new_tokens;
  return (tokens + kvedge::kTokensATask - 1) / kvedge::kTokensATask;
}

void kvedge_prepare_task(const kvedge_shape* shape, const kvedge_projected* from, float* q, float* k, float* v,
                         int64_t task) {
  const kvedge_shape& s = *shape;
  const int64_t first = task * kvedge::kTokensATask, tokens = int64_t(s.batch) * s.new_tokens;
  const int64_t q_width = int64_t(s.heads) * s.head_dim, width = int64_t(s.kv_heads) * s.head_dim;
  for (int64_t t = first; t < std::min(first + kvedge::kTokensATask, tokens); ++t) {
    const int64_t b = t / s.new_tokens, index = t % s.new_tokens;
    const bool packed = from->k == nullptr;
    const float* x = from->q + t * (packed ? q_width + 2 * width : q_width);
    const float* x_k = packed ? x + q_width : from->k + t * width;
    const float* x_v = packed ? x_k + width : from->v + t * width;
    const float* cos = from->cos == nullptr ? nullptr : from->cos + t * s.rotary_pairs;
    const float* sin = from->cos == nullptr ? nullptr : from->sin + t * s.rotary_pairs;
    const auto at = [&](int64_t heads) { return (b * heads * s.new_tokens + index) * s.head_dim; };
    kvedge::place(s, x, s.heads, cos, sin, q + at(s.heads));
    kvedge::place(s, x_k, s.kv_heads, cos, sin, k + at(s.kv_heads));
    kvedge::place(s, x_v, s.kv_heads, nullptr, nullptr, v + at(s.kv_heads));
  }
}

}  // extern "C"
