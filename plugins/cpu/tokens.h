// Keys and values of a row as they are stored: from the step's new tokens, the hot pool or a packed page.
#ifndef KVEDGE_TOKENS_H
#define KVEDGE_TOKENS_H

#include <algorithm>
#include <cstring>

#include "geometry.h"
#include "loops.h"

namespace kvedge {

// Calls copy(source, count, target) for rows of dim elements each: once where the target's lie side by side, too.
template <class Source, class Copy>
inline void copy_rows(const Source* source, int64_t rows, int64_t dim, float* out, int64_t stride, Copy copy) {
  if (stride == dim) return copy(source, rows * dim, out);
  for (int64_t r = 0; r < rows; ++r) copy(source + r * dim, dim, out + r * stride);
}

// Exact tokens [from, last), all of one page, of one head (part 0: K, 1: V) to rows of out, `stride` apart. New tokens
// are rounded to the pool's type, so that results do not depend on the step in which a token arrived.
inline void load_tokens(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t b, int64_t head, int part,
                        int64_t from, int64_t last, float* out, int64_t stride) {
  const auto as_it_is = [](const float* x, int64_t count, float* to) { std::memcpy(to, x, sizeof(float) * count); };
  const int64_t dim = s.head_dim, context = step.context[b], is_new = std::clamp(context, from, last);
  if (from < is_new) {
    const int64_t at = hot_index(s, step, b, g.hot_slot(from), part, head), rows = is_new - from;
    if (s.hot_is_half)
      copy_rows(static_cast<const uint16_t*>(step.hot) + at, rows, dim, out, stride, loops().read_halves);
    else
      copy_rows(static_cast<const float*>(step.hot) + at, rows, dim, out, stride, as_it_is);
  }
  if (is_new < last) {
    const float* x = (part ? step.v : step.k) + ((b * s.kv_heads + head) * s.new_tokens + is_new - context) * dim;
    float* to = out + (is_new - from) * stride;
    if (s.hot_is_half)
      copy_rows(x, last - is_new, dim, to, stride, loops().round_to_half);
    else
      copy_rows(x, last - is_new, dim, to, stride, as_it_is);
  }
}

// Loops that read the packed pages of a layer in integers; null where they are read in floats.
inline const ByteLoops* byte_loops(const kvedge_shape& s) { return s.float_codes ? nullptr : loops().bytes; }
inline const ManyByteLoops* many_byte_loops(const kvedge_shape& s) {
  return s.float_codes ? nullptr : loops().many.bytes;
}

// One head of a packed page, where it lies.
struct PackedPage {
  Packed keys, values;
  PageScales scales;

  // Floats: scales [T], mean [D].
  void read_scales(float* key_scale, float* value_scale, float* page_mean) const {
    loops().read_halves(scales.keys, keys.lanes, key_scale);
    loops().read_halves(scales.values, keys.lanes, value_scale);
    loops().read_halves(scales.mean, values.lanes, page_mean);
  }
};

inline PackedPage packed_page(const kvedge_shape& s, const kvedge_step& step, int64_t b, int64_t number, int64_t head) {
  const PackedLayout at = layout_of(s);
  const int32_t* words = packed_head(s, step, b, number, head);
  const auto halves = [words](int64_t offset) { return reinterpret_cast<const uint16_t*>(words + offset); };
  return {{words, key_code(s), s.page, s.head_dim}, {words + at.v_codes, value_code(s), s.head_dim, s.page},
          {halves(at.k_scales), halves(at.v_scales), halves(at.k_mean)}};
}

}  // namespace kvedge
#endif
