// What one block of queries reads, and in which order. Keys come in segments of some pages, from the oldest; within
// one, sinks first, then pages.
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

// Pages [first, last); the last segment of a block also reads the sinks.
struct Segment {
  int64_t first, last;
  bool sinks;
};

// Queries among the sinks stand in pages below 0, and have one segment as those of page 0 do.
inline int64_t segments_of(const Geometry& g, const Block& block) {
  const int64_t oldest = g.page_of(g.window_start(block.first));
  return std::max<int64_t>(0, block.page) / kSegmentPages - std::max<int64_t>(0, oldest) / kSegmentPages + 1;
}

inline Segment segment_of(const Geometry& g, const Block& block, int64_t number) {
  const int64_t oldest = g.page_of(g.window_start(block.first));
  const int64_t first = (std::max<int64_t>(0, oldest) / kSegmentPages + number) * kSegmentPages;
  const bool last = number + 1 == segments_of(g, block);
  return {number == 0 ? oldest : first, last ? block.page + 1 : first + kSegmentPages, last};
}

// What a query sees of a tile that begins at order `first`: lanes [from, to).
struct Visible {
  int32_t from, to;
};

inline Visible visible(const Geometry& g, int64_t query, int64_t first, int64_t last, bool sinks) {
  const int64_t oldest = sinks ? 0 : g.window_start(query);
  return {int32_t(std::max(oldest, first) - first), int32_t(std::min(query + 1, last) - first)};
}

// Hands the tiles of a segment to a reader, in order: sinks(first, last), packed(page) and exact(first, from, last) in
// orders of tokens; before each, what comes after it: soon(page). Returns the number of packed pages.
template <class Reader>
int32_t read_segment(const Geometry& g, const Block& block, const Segment& segment, Reader& reader) {
  const int64_t sinks = segment.sinks ? std::min(g.sinks, block.last) : 0, oldest = g.window_start(block.first);
  for (int64_t first = 0; first < sinks; first += g.page) reader.sinks(first, std::min(first + g.page, sinks));
  int32_t packed_pages = 0;
  for (int64_t number = segment.first; number < segment.last; ++number) {
    if (number + 1 < segment.last) reader.soon(number + 1);
    const int64_t start = g.page_start(number), from = std::max(start, oldest), last = std::min(start + g.page, block.last);
    if (g.reads_packed(block.page, number))
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
