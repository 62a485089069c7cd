// What one block of queries reads, and in which order. Keys come in segments of some pages: packed ones from the
// oldest, then exact ones, the sinks first in the last of them.
#ifndef KVEDGE_ATTEND_BLOCK_H
#define KVEDGE_ATTEND_BLOCK_H

#include <algorithm>
#include <cstdint>

#include "geometry.h"

namespace kvedge {

constexpr int64_t kSegmentPages = 16;

// Queries [first, last) of row b, all in one page, times the query heads of one kv head.
struct Block {
  int64_t b, head, first, last, page;
};

inline int64_t rows_of(const kvedge_shape& s, const Block& block) {
  return (block.last - block.first) * (s.heads / s.kv_heads);
}

// Where row r of a block stands: rows go token by token, the query heads of one side by side.
struct RowPosition {
  int64_t query, token;  // order; of all new ones of the batch, padding included
  int64_t q, out;        // first element in q, and in the output

  RowPosition(const kvedge_shape& s, const kvedge_step& step, const Block& block, int64_t r) {
    const int64_t group = s.heads / s.kv_heads, head = block.head * group + r % group;
    query = block.first + r / group;
    const int64_t index = query - step.context[block.b];
    token = block.b * s.new_tokens + index;
    q = ((block.b * s.heads + head) * s.new_tokens + index) * s.head_dim;
    out = (token * s.heads + head) * s.head_dim;
  }
};

// Pages [first, last), all packed or all exact; the last segment of a block also reads the sinks, if there are any.
struct Segment {
  int64_t first, last;
  bool packed, sinks;
};

// Which segments a block has. Where one begins depends on the page of its queries alone, not on how many there are.
struct Segments {
  int64_t oldest, exact, end;  // pages: packed [oldest, exact), exact ones from there to `end`
  int64_t base;                // where whole segments of exact pages begin
  int64_t packed_count, count;
  bool has_sinks;

  Segments(const Geometry& g, const Block& block)
      : oldest(g.page_of(g.window_start(block.first))),
        exact(g.packs ? std::max(oldest, block.page - g.recent_pages) : oldest),
        end(std::max(exact, block.page + 1)),
        base(g.packs ? block.page - g.recent_pages : 0),
        packed_count(exact == oldest ? 0 : number_of(exact - 1) - number_of(oldest) + 1),
        count(packed_count + (exact == end ? 1 : number_of(end - 1 - base) - number_of(exact - base) + 1)),
        has_sinks(g.sinks > 0) {}

  Segment operator[](int64_t n) const {
    const bool packed = n < packed_count;
    const int64_t first = packed ? oldest : exact, last = packed ? exact : end, from = packed ? 0 : base;
    const int64_t start = from + (number_of(first - from) + (packed ? n : n - packed_count)) * kSegmentPages;
    return {std::max(first, start), std::min(last, start + kSegmentPages), packed, has_sinks && n + 1 == count};
  }

 private:
  static int64_t number_of(int64_t page) { return page / kSegmentPages; }
};

// What a query sees of a tile that begins at order `first`: lanes [from, to).
struct Visible {
  int32_t from, to;
};

inline Visible visible(const Geometry& g, int64_t query, int64_t first, int64_t last, bool sinks) {
  const int64_t oldest = sinks ? 0 : g.window_start(query);
  return {int32_t(std::max(oldest, first) - first), int32_t(std::min(query + 1, last) - first)};
}

// Hands the tiles of a segment to a reader, in order: sinks(first, last), packed(page) and exact(first, from, last) in
// orders of tokens; before each, what comes after it: soon_packed(page), soon_exact(first). Returns the number of
// packed pages.
template <class Reader>
int32_t read_segment(const Geometry& g, const Block& block, const Segment& segment, Reader& reader) {
  const int64_t sinks = segment.sinks ? std::min(g.sinks, block.last) : 0, oldest = g.window_start(block.first);
  const auto soon = [&](int64_t number) {
    if (number < segment.last) segment.packed ? reader.soon_packed(number) : reader.soon_exact(g.page_start(number));
  };
  for (int64_t first = 0; first < sinks; first += g.page) {
    first + g.page < sinks ? reader.soon_exact(first + g.page) : soon(segment.first);
    reader.sinks(first, std::min(first + g.page, sinks));
  }
  int32_t packed_pages = 0;
  for (int64_t number = segment.first; number < segment.last; ++number) {
    soon(number + 1);
    const int64_t start = g.page_start(number), from = std::max(start, oldest), last = std::min(start + g.page, block.last);
    if (segment.packed)
      reader.packed(number), ++packed_pages;
    else if (from < last)
      reader.exact(start, from, last);
  }
  return packed_pages;
}

// A block of many queries, from kManyRows rows on; returns the number of packed pages read.
constexpr int64_t kManyRows = 8;
int32_t attend_many(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block);

}  // namespace kvedge
#endif
