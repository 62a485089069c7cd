// Which page a token belongs to, what a query sees and where bytes lie: the C++ twin of targets/visibility.py.
#ifndef KVEDGE_GEOMETRY_H
#define KVEDGE_GEOMETRY_H

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codebook.h"
#include "kvedge/layout.h"
#include "kvedge/paged_attention.h"

namespace kvedge {

// Whether a layer packs pages at all: a window of R + 1 keys or fewer never reaches one.
inline bool packs(const kvedge_shape& s) { return s.k_bits > 0 && (s.window == 0 || s.window > s.recent + 1); }

struct Slot {
  int64_t column, offset;
};

struct Geometry {
  int64_t page, sinks, recent_pages, window, sink_pages, ring_pages;
  bool packs;

  Geometry(const kvedge_shape& s, const kvedge_step& step)
      : page(s.page),
        sinks(s.sinks),
        recent_pages(s.recent / s.page),
        window(s.window),
        sink_pages((s.sinks + s.page - 1) / s.page),
        ring_pages(s.hot_slots - sink_pages),
        packs(s.k_bits != 0 && step.packed != nullptr) {}

  // Floor division: sinks have negative pages.
  int64_t page_of(int64_t order) const {
    const int64_t o = order - sinks;
    return o >= 0 ? o / page : -((page - 1 - o) / page);
  }
  int64_t page_start(int64_t number) const { return sinks + number * page; }
  int64_t window_start(int64_t query) const { return window == 0 ? sinks : std::max(sinks, query - window + 1); }
  bool reads_packed(int64_t query_page, int64_t key_page) const {
    return packs && query_page - key_page > recent_pages;
  }
  int64_t sealed_pages(int64_t num_tokens) const {
    return num_tokens == 0 || !packs ? 0 : std::max<int64_t>(0, page_of(num_tokens - 1) - recent_pages);
  }
  Slot hot_slot(int64_t order) const {
    if (order < sinks) return {order / page, order % page};
    const int64_t slot = (order - sinks) % (ring_pages * page);
    return {sink_pages + slot / page, slot % page};
  }
};

inline Code code_of(int32_t bits, int32_t has_floats) {
  if (bits == 8) return has_floats ? Code::kE4m3 : Code::kUniform;
  return bits == 4 ? Code::kNormal4 : bits == 3 ? Code::kNormal3 : bits == 2 ? Code::kNormal2 : Code::kNone;
}
inline Code key_code(const kvedge_shape& s) { return code_of(s.k_bits, s.float_codes); }
inline Code value_code(const kvedge_shape& s) { return code_of(s.v_bits, s.float_codes); }

inline PackedLayout layout_of(const kvedge_shape& s) { return {s.head_dim, s.page, s.k_bits, s.v_bits}; }

struct Turn {
  float cos, sin;
};

// Rotation of pair i of the key bias to position `start`.
inline Turn bias_turn(const kvedge_step& step, int64_t i, int64_t start) {
  const double angle = double(step.bias_freqs[i]) * double(start);
  return {float(std::cos(angle)), float(std::sin(angle))};
}

// First word of one head in the packed page that holds page `number` of row b.
inline int32_t* packed_head(const kvedge_shape& s, const kvedge_step& step, int64_t b, int64_t number, int64_t head) {
  const int64_t id = step.packed_table[b * s.packed_slots + number % s.packed_slots];
  return step.packed + (id * s.kv_heads + head) * layout_of(s).head_words;
}

// Element index in the hot pool of one token of one head; part 0 is K, 1 is V.
inline int64_t hot_index(const kvedge_shape& s, const kvedge_step& step, int64_t b, Slot slot, int part, int64_t head) {
  const int64_t id = step.hot_table[b * s.hot_slots + slot.column];
  return (((id * 2 + part) * s.kv_heads + head) * s.page + slot.offset) * s.head_dim;
}

}  // namespace kvedge
#endif
