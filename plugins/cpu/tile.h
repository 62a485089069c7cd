// A tile: the keys and values of one page of one head, from whichever place they lie in.
//
// Keys stand by channel [D][key_stride] and values by token [T][value_stride], in whole vectors, so that the two
// products of attention run along their inner loop. What is outside the tile's range is whatever was there
// before. Values that lie in the pool as they should are read there. Packed tiles stay rotated and unscaled:
// key_scale and value_scale belong to them, and scores get the query's product with the page mean. Their codes are read
// where they lie by few query rows, and unpacked once for many.
#ifndef KVEDGE_TILE_H
#define KVEDGE_TILE_H

#include <algorithm>
#include <vector>

#include "loops.h"
#include "tokens.h"

namespace kvedge {

struct Tile {
  int64_t first = 0, from = 0, last = 0;  // orders in the tile: [from, last), the lane of `first` is 0
  int64_t copied = 0;                     // values of an exact tile from this order on; those before are in the pool
  const void* pool_values = nullptr;      // [T][dim] in the pool's type
  const char* soon = nullptr;             // where what is read after this tile begins
  bool packed = false, direct = false;    // direct: keys and values were not unpacked
  int64_t key_stride, value_stride;
  Packed key_codes{}, value_codes{};
  std::vector<float> keys, values, rows, key_scale, value_scale, mean, bias;
  std::vector<int32_t> key_bytes, value_bytes;  // levels of packed pages where they are read in integers

  Tile(int64_t dim, int64_t page)
      : key_stride(padded(page)), value_stride(padded(dim)), keys(dim * key_stride), values(page * value_stride),
        rows(page * dim), key_scale(key_stride), value_scale(key_stride), mean(padded(dim)), key_bytes(dim / 4 * key_stride),
        value_bytes(page / 4 * value_stride) {}
};

inline void load_packed(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t b, int64_t head,
                        int64_t number, bool direct, Tile& tile) {
  const PackedPage page = packed_page(s, step, b, number, head);
  tile.packed = true;
  tile.direct = direct;
  tile.first = tile.from = g.page_start(number);
  tile.last = tile.first + s.page;
  tile.key_codes = page.keys;
  tile.value_codes = page.values;
  if (!direct && byte_loops(s) != nullptr) {
    byte_loops(s)->expand[true](tile.key_codes, tile.key_bytes.data());
    byte_loops(s)->expand[false](tile.value_codes, tile.value_bytes.data());
  } else if (!direct) {
    loops().expand(tile.key_codes, tile.keys.data());
    loops().expand(tile.value_codes, tile.values.data());
  }
  page.read_scales(tile.key_scale.data(), tile.value_scale.data(), tile.mean.data());
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

// Keys [T][dim] of a page, from token `from` to where copies begin, by channel and in eights; its values are where they
// are.
template <class Element>
inline void load_pooled(const kvedge_shape& s, const Element* keys, int64_t from, Tile& tile, const PoolLoops<Element>& loops) {
  const int64_t begin = from / 8 * 8, dim = s.head_dim;
  const Element* values = keys + int64_t(s.kv_heads) * s.page * dim;
  tile.pool_values = values;
  loops.keys(keys + begin * dim, tile.copied - tile.first - begin, dim, tile.keys.data() + begin, tile.key_stride,
             values + begin * dim);
}

// Exact tokens [from, last) of the page or sinks that begin at `first`. A token's lane is fixed by its order,
// so that sums over lanes come out the same whichever part of the page a step needs.
inline void load_exact(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t b, int64_t head,
                       int64_t first, int64_t from, int64_t last, Tile& tile) {
  tile.packed = tile.direct = false;
  tile.first = first;
  tile.from = from;
  tile.last = last;
  tile.copied = from;
  const int64_t eights = (std::min<int64_t>(step.context[b], last) - first) / 8 * 8;
  if (s.head_dim == tile.value_stride && first + eights > from) {
    tile.copied = first + eights;
    const int64_t at = hot_index(s, step, b, g.hot_slot(first), 0, head);
    if (s.hot_is_half)
      load_pooled(s, static_cast<const uint16_t*>(step.hot) + at, from - first, tile, loops().halves);
    else
      load_pooled(s, static_cast<const float*>(step.hot) + at, from - first, tile, loops().floats);
  }
  const int64_t lane = tile.copied - first;
  load_tokens(s, step, g, b, head, 0, tile.copied, last, tile.rows.data() + lane * s.head_dim, s.head_dim);
  load_tokens(s, step, g, b, head, 1, tile.copied, last, tile.values.data() + lane * tile.value_stride, tile.value_stride);
  const int64_t begin = lane / 8 * 8, end = (last - first + 7) / 8 * 8;
  loops().transpose(tile.rows.data() + begin * s.head_dim, end - begin, s.head_dim, tile.keys.data() + begin,
                    tile.key_stride);
}

}  // namespace kvedge
#endif
