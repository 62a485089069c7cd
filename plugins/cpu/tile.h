// A tile: the keys and values of one page of one head as fp32, from whichever place they lie in.
//
// Keys stand by channel [D][stride] and values by token [T][value_stride], both padded with zeros to whole
// vectors, so that the two products of attention run along their inner loop. Tokens outside the tile's
// range are zero. Packed tiles stay rotated and unscaled: key_scale and value_scale belong to them, and
// scores get the query's product with the page mean.
#ifndef KVEDGE_TILE_H
#define KVEDGE_TILE_H

#include <algorithm>
#include <vector>

#include "loops.h"
#include "tokens.h"

namespace kvedge {

struct Tile {
  int64_t first = 0, last = 0;  // orders in the tile: [first, last)
  bool packed = false;
  int64_t key_stride, value_stride;
  std::vector<float> keys, values, key_scale, value_scale, mean, bias;

  Tile(int64_t dim, int64_t page)
      : key_stride(padded(page)), value_stride(padded(dim)), keys(dim * key_stride), values(page * value_stride),
        key_scale(page), value_scale(page), mean(padded(dim)) {}
};

inline void read_halves(const uint8_t* bytes, int64_t count, float* out) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(bytes);
  for (int64_t i = 0; i < count; ++i) out[i] = from_half(halves[i]);
}

inline void load_packed(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t b, int64_t head,
                        int64_t number, Tile& tile) {
  const PackedLayout at = layout_of(s);
  const uint8_t* bytes = packed_head(s, step, b, number, head);
  tile.packed = true;
  tile.first = g.page_start(number);
  tile.last = tile.first + s.page;
  loops().expand(s.k_bits, bytes, at.plane_bytes, s.head_dim, s.page / 8, tile.keys.data(), tile.key_stride);
  loops().expand(s.v_bits, bytes + at.v_planes, at.plane_bytes, s.page, s.head_dim / 8, tile.values.data(), tile.value_stride);
  read_halves(bytes + at.k_scales, s.page, tile.key_scale.data());
  read_halves(bytes + at.v_scales, s.page, tile.value_scale.data());
  read_halves(bytes + at.k_mean, s.head_dim, tile.mean.data());
}

// The key bias at each offset of a page at position 0: [2F][stride], padded with zeros.
inline void load_bias(const kvedge_shape& s, const kvedge_step& step, int64_t head, Tile& tile) {
  const int64_t rows = 2 * s.bias_pairs;
  tile.bias.assign(rows * tile.key_stride, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = step.bias_page + (head * rows + r) * s.page;
    std::copy(from, from + s.page, tile.bias.data() + r * tile.key_stride);
  }
}

// Exact tokens [from, last) of the page or sinks that begin at `first`. A token's lane is fixed by its order,
// so that sums over lanes come out the same whichever part of the page a step needs.
inline void load_exact(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t b, int64_t head,
                       int64_t first, int64_t from, int64_t last, Tile& tile) {
  tile.packed = false;
  tile.first = first;
  tile.last = last;
  std::fill(tile.keys.begin(), tile.keys.end(), 0.0f);
  std::fill(tile.values.begin(), tile.values.end(), 0.0f);
  for (int64_t order = from; order < last; ++order) {
    const int64_t t = order - first;
    load_token(s, step, g, b, head, 0, order, tile.keys.data() + t, tile.key_stride);
    load_token(s, step, g, b, head, 1, order, tile.values.data() + t * tile.value_stride, 1);
  }
}

}  // namespace kvedge
#endif
