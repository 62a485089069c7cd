// attend: one task is one kv head and one query page of one row; its query heads share every tile.
// Twin of plugins/reference/attend.py.
//
// Tiles are visited in one fixed order (sinks, then pages from the oldest), with the online softmax of
// Milakov and Gimelshein (2018). A query's arithmetic depends on its own tiles only, so its result is the
// same to the bit in whatever chunk or batch it arrives. Packed tiles are scored and summed in the rotated
// basis: the query is rotated once, the output un-rotated once.
#include <cmath>
#include <cstring>
#include <vector>

#include "rotation.h"
#include "tile.h"

namespace kvedge {
namespace {

// Queries [first, last) of row b, all in one page, times the query heads of one kv head.
struct Block {
  int64_t b, head, first, last, page;
};

struct Queries {
  int64_t rows, dim, stride, lanes;  // stride: padded head_dim; lanes: padded page
  std::vector<float> plain, turned, rotated, exact_sum, packed_sum, top, total, scores, scratch;
  std::vector<float> bias_query, bias_scores;  // as plain and scores, for the key bias

  Queries(int64_t max_rows, int64_t head_dim, int64_t page)
      : rows(0), dim(head_dim), stride(padded(head_dim)), lanes(padded(page)), plain(max_rows * stride),
        turned(max_rows * stride), rotated(max_rows * stride), exact_sum(max_rows * stride),
        packed_sum(max_rows * stride), top(max_rows), total(max_rows), scores(max_rows * lanes), scratch(head_dim) {}
};

struct Workspace {
  Tile tile;
  Queries queries;
  Workspace(const kvedge_shape& s, int64_t rows) : tile(s.head_dim, s.page), queries(rows, s.head_dim, s.page) {}
};

// One row of scores becomes weights; where the maximum grows, what was summed before shrinks.
void weigh(float* scores, int64_t lo, int64_t hi, int64_t row, Queries& q) {
  if (lo >= hi) return void(std::fill_n(scores, q.lanes, 0.0f));
  const float high = std::max(q.top[row], loops().mask(scores, lo, hi, q.lanes));
  if (high != q.top[row]) {
    const float shrink = loops().exp_of_negative(q.top[row] - high);
    q.total[row] *= shrink;
    for (int64_t d = row * q.stride; d < (row + 1) * q.stride; ++d) q.exact_sum[d] *= shrink;
    for (int64_t d = row * q.stride; d < (row + 1) * q.stride; ++d) q.packed_sum[d] *= shrink;
    q.top[row] = high;
  }
  q.total[row] += loops().weigh(scores, q.lanes, high);
}

// out = the query rotated by minus the sink shift, over the rotary channels only.
void turn_back(const kvedge_shape& s, const float* cos, const float* sin, const float* q, float* out) {
  const int64_t pairs = s.rotary_pairs, step = s.rotary_interleaved ? 2 : 1, other = s.rotary_interleaved ? 1 : pairs;
  std::memcpy(out, q, sizeof(float) * s.head_dim);
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = q[i * step], b = q[i * step + other];
    out[i * step] = a * cos[i] + b * sin[i];
    out[i * step + other] = b * cos[i] - a * sin[i];
  }
}

void load_queries(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block, Queries& q) {
  const int64_t group = s.heads / s.kv_heads;
  q.rows = (block.last - block.first) * group;
  for (int64_t r = 0; r < q.rows; ++r) {
    const int64_t index = block.first + r / group - step.context[block.b], head = block.head * group + r % group;
    const float* x = step.q + ((block.b * s.heads + head) * s.new_tokens + index) * s.head_dim;
    float* plain = q.plain.data() + r * q.stride;
    for (int64_t d = 0; d < s.head_dim; ++d) plain[d] = x[d] * s.scale;
    float* turned = q.turned.data() + r * q.stride;
    const int64_t at = (block.b * s.new_tokens + index) * s.rotary_pairs;
    if (step.sink_cos != nullptr)
      turn_back(s, step.sink_cos + at, step.sink_sin + at, plain, turned);
    else
      std::memcpy(turned, plain, sizeof(float) * s.head_dim);
    if (g.packs) {
      float* rotated = q.rotated.data() + r * q.stride;
      std::memcpy(rotated, plain, sizeof(float) * s.head_dim);
      rotate(rotation_for(s.head_dim), rotated, 1, q.scratch.data());
    }
    q.top[r] = -INFINITY;
    q.total[r] = 0.0f;
  }
  std::fill_n(q.exact_sum.begin(), q.rows * q.stride, 0.0f);
  std::fill_n(q.packed_sum.begin(), q.rows * q.stride, 0.0f);
}

// Scores of rows [row, row + rows) with the key bias of a packed page at position `start`: the query is turned
// to the page's first position, and meets the bias there.
void score_bias(const kvedge_shape& s, const kvedge_step& step, const Tile& tile, int64_t start, int64_t row,
                int64_t rows, Queries& q) {
  const int64_t pairs = s.bias_pairs, stride = padded(2 * pairs);
  q.bias_query.resize(q.top.size() * stride);
  q.bias_scores.resize(q.scores.size());
  for (int64_t i = 0; i < pairs; ++i) {
    const Turn turn = bias_turn(step, i, start);
    for (int64_t r = row; r < row + rows; ++r) {
      const float a = q.plain[r * q.stride + step.bias_channels[i]];
      const float b = q.plain[r * q.stride + step.bias_channels[pairs + i]];
      q.bias_query[r * stride + i] = a * turn.cos + b * turn.sin;
      q.bias_query[r * stride + pairs + i] = b * turn.cos - a * turn.sin;
    }
  }
  std::fill_n(q.bias_scores.begin() + row * q.lanes, rows * q.lanes, 0.0f);
  loops().product(tile.bias.data(), q.lanes, 2 * pairs, {&q.bias_query[row * stride], rows, stride},
                  &q.bias_scores[row * q.lanes]);
}

// scores [rows][lanes] = query . keys
void score(const Tile& tile, const Rows& query, int64_t lanes, int64_t dim, float* scores) {
  std::fill_n(scores, query.count * lanes, 0.0f);
  if (tile.direct)
    loops().packed_product(tile.key_codes, query, scores);
  else
    loops().product(tile.keys.data(), lanes, dim, query, scores);
}

// sums [rows][stride] += weights . values
void accumulate(const Tile& tile, const Rows& weights, float* sums) {
  const int64_t skipped = tile.from - tile.first;
  if (tile.direct)
    loops().packed_product(tile.value_codes, weights, sums);
  else
    loops().product(tile.values.data() + skipped * tile.value_stride, tile.value_stride, tile.last - tile.from,
                    {weights.x + skipped, weights.count, weights.stride}, sums);
}

// Every row of the block reads the tile. `from` tells the oldest order that a query sees in it.
template <typename From>
void read_tile(const kvedge_shape& s, const kvedge_step& step, const Block& block, const std::vector<float>& query,
               const Tile& tile, From from, Queries& q) {
  const int64_t group = s.heads / s.kv_heads, tokens = tile.last - tile.first;
  const auto sees = [&](int64_t order) {
    return std::max(from(order), tile.first) < std::min(order + 1, tile.last);
  };
  int64_t first = block.first, last = block.last;
  while (first < last && !sees(first)) ++first;
  while (last > first && !sees(last - 1)) --last;
  if (first == last) return;
  const int64_t row = (first - block.first) * group, rows = (last - first) * group;
  float* scores = q.scores.data() + row * q.lanes;
  score(tile, {query.data() + row * q.stride, rows, q.stride}, q.lanes, s.head_dim, scores);
  const bool biased = tile.packed && s.bias_pairs > 0;
  if (biased) score_bias(s, step, tile, tile.first, row, rows, q);
  for (int64_t r = row; r < row + rows; ++r) {
    const int64_t order = block.first + r / group;
    float* line = q.scores.data() + r * q.lanes;
    if (tile.packed)
      loops().rescale(line, tile.key_scale.data(), loops().dot(&q.plain[r * q.stride], tile.mean.data(), q.stride), tokens);
    if (biased)
      for (int64_t t = 0; t < tokens; ++t) line[t] += q.bias_scores[r * q.lanes + t];
    if (s.softcap > 0.0f)
      for (int64_t t = 0; t < tokens; ++t) line[t] = s.softcap * std::tanh(line[t] / s.softcap);
    const int64_t lo = std::max(from(order), tile.first) - tile.first;
    const int64_t hi = std::min(order + 1, tile.last) - tile.first;
    weigh(line, lo, hi, r, q);
    if (tile.packed) loops().rescale(line, tile.value_scale.data(), 0.0f, tokens);
  }
  std::vector<float>& sums = tile.packed ? q.packed_sum : q.exact_sum;
  accumulate(tile, {scores, rows, q.lanes}, sums.data() + row * q.stride);
}

void read_sinks(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block, Workspace& w) {
  const int64_t end = std::min(g.sinks, block.last);
  for (int64_t first = 0; first < end; first += g.page) {
    load_exact(s, step, g, block.b, block.head, first, first, std::min(first + g.page, end), w.tile);
    read_tile(s, step, block, w.queries.turned, w.tile, [](int64_t) { return int64_t(0); }, w.queries);
  }
}

// Returns the number of packed pages read.
int32_t read_pages(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block, Workspace& w) {
  int32_t packed_pages = 0;
  const bool direct = w.queries.rows <= loops().direct_rows;
  const auto visible_from = [&](int64_t order) { return g.window_start(order); };
  const int64_t oldest = g.window_start(block.first);
  if (s.bias_pairs > 0) load_bias(s, step, block.head, w.tile);
  for (int64_t number = g.page_of(oldest); number <= block.page; ++number) {
    if (g.reads_packed(block.page, number)) {
      load_packed(s, step, g, block.b, block.head, number, direct, w.tile);
      read_tile(s, step, block, w.queries.rotated, w.tile, visible_from, w.queries);
      ++packed_pages;
    } else {
      const int64_t start = g.page_start(number);
      const int64_t from = std::max(start, oldest), last = std::min(start + g.page, block.last);
      if (from >= last) continue;
      load_exact(s, step, g, block.b, block.head, start, from, last, w.tile);
      read_tile(s, step, block, w.queries.plain, w.tile, visible_from, w.queries);
    }
  }
  return packed_pages;
}

void write_out(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block, Queries& q) {
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t r = 0; r < q.rows; ++r) {
    const int64_t index = block.first + r / group - step.context[block.b], head = block.head * group + r % group;
    float* out = step.out + ((block.b * s.new_tokens + index) * s.heads + head) * s.head_dim;
    const float* exact = q.exact_sum.data() + r * q.stride;
    float* packed = q.packed_sum.data() + r * q.stride;
    if (g.packs) unrotate(rotation_for(s.head_dim), packed, 1, q.scratch.data());
    for (int64_t d = 0; d < s.head_dim; ++d) out[d] = (exact[d] + packed[d]) / q.total[r];
  }
}

int64_t query_pages(const Geometry& g, const kvedge_step& step, int64_t b) {
  if (step.num_new[b] == 0) return 0;
  return g.page_of(int64_t(step.context[b]) + step.num_new[b] - 1) - g.page_of(step.context[b]) + 1;
}

Block block_of(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, int64_t task) {
  int64_t number = task / s.kv_heads, b = 0;
  while (number >= query_pages(g, step, b)) number -= query_pages(g, step, b++);
  const int64_t page = g.page_of(step.context[b]) + number, end = int64_t(step.context[b]) + step.num_new[b];
  const int64_t first = std::max<int64_t>(step.context[b], g.page_start(page));
  return {b, task % s.kv_heads, first, std::min(end, g.page_start(page + 1)), page};
}

// Grows to the largest step of this thread and stays: no allocation in the long run.
Workspace& workspace_for(const kvedge_shape& s, int64_t rows) {
  thread_local std::vector<Workspace> kept;
  for (Workspace& w : kept) {
    const bool fits = w.queries.dim == s.head_dim && int64_t(w.tile.key_scale.size()) == s.page;
    if (fits && int64_t(w.queries.top.size()) >= rows) return w;
    if (fits) return w = Workspace(s, rows);
  }
  kept.emplace_back(s, rows);
  return kept.back();
}

void clear_padding(const kvedge_shape& s, const kvedge_step& step) {
  const int64_t token = int64_t(s.heads) * s.head_dim;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t pad = s.new_tokens - step.num_new[b];
    std::fill_n(step.out + (b * s.new_tokens + step.num_new[b]) * token, pad * token, 0.0f);
  }
}

}  // namespace
}  // namespace kvedge

extern "C" {

int64_t kvedge_attend_tasks(const kvedge_shape* shape, const kvedge_step* step) {
  const kvedge::Geometry g(*shape, *step);
  int64_t pages = 0;
  for (int64_t b = 0; b < shape->batch; ++b) {
    step->pages_read[b] = 0;
    pages += kvedge::query_pages(g, *step, b);
  }
  kvedge::clear_padding(*shape, *step);
  return pages * shape->kv_heads;
}

void kvedge_attend_task(const kvedge_shape* shape, const kvedge_step* step, int64_t task) {
  const kvedge::Geometry g(*shape, *step);
  const kvedge::Block block = kvedge::block_of(*shape, *step, g, task);
  const int64_t rows = (block.last - block.first) * (shape->heads / shape->kv_heads);
  kvedge::Workspace& w = kvedge::workspace_for(*shape, rows);
  kvedge::load_queries(*shape, *step, g, block, w.queries);
  kvedge::read_sinks(*shape, *step, g, block, w);
  const int32_t packed_pages = kvedge::read_pages(*shape, *step, g, block, w);
  __atomic_fetch_add(&step->pages_read[block.b], packed_pages, __ATOMIC_RELAXED);
  kvedge::write_out(*shape, *step, g, block, w.queries);
}

}  // extern "C"
