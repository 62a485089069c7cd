// The turn of a rotary embedding, over the rotary channels of one head.
#ifndef KVEDGE_CPU_TURN_H
#define KVEDGE_CPU_TURN_H

#include <cstring>

#include "kvedge/paged_attention.h"

namespace kvedge {

// out [D] = x turned by the angles of cos and sin [rotary_pairs], or (sign -1) by minus them.
inline void turn(const kvedge_shape& s, const float* cos, const float* sin, float sign, const float* x, float* out) {
  const int64_t pairs = s.rotary_pairs, step = s.rotary_interleaved ? 2 : 1, other = s.rotary_interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = x[i * step], b = x[i * step + other], along = sign * sin[i];
    out[i * step] = a * cos[i] - b * along;
    out[i * step + other] = b * cos[i] + a * along;
  }
  std::memcpy(out + 2 * pairs, x + 2 * pairs, sizeof(float) * (s.head_dim - 2 * pairs));
}

}  // namespace kvedge
#endif
