// attend: one task is one kv head and one query page of one row; its query heads share every tile. In a step of
// few queries a task is one segment of the keys instead (split-KV, as in Flash-Decoding, Dao et al. 2023).
// Twin of plugins/reference/attend.py.
//
// Keys come in segments of some pages, all packed or all exact (attend_block.h); within one, tiles are visited in order,
// with the online softmax of Milakov and Gimelshein (2018), and segments are merged in order. A query's arithmetic
// depends on its own tiles only, so its result is the same to the bit in whatever chunk or batch it arrives. Packed
// segments are scored and summed in the rotated basis: the query is rotated once, their sum un-rotated once.
#include <cmath>
#include <cstring>
#include <vector>

#include "attend_block.h"
#include "codebook.h"
#include "rotation.h"
#include "scratch.h"
#include "tile.h"
#include "turn.h"

namespace kvedge {
namespace {

constexpr int64_t kFewQueries = 4;  // of a step: there segments are tasks

// Rows in 8 bits; a result is factor * (start + integer product).
struct Bytes {
  int64_t stride;
  std::vector<uint8_t> x;
  std::vector<float> factor;
  std::vector<int32_t> start;

  Bytes(int64_t rows, int64_t row_stride) : stride(row_stride), x(rows * row_stride), factor(rows), start(rows) {}
  ByteRows rows(int64_t first, int64_t count) const {
    return {x.data() + first * stride, count, stride, factor.data() + first, start.data() + first};
  }
};

struct Queries {
  int64_t rows, stride, lanes;  // stride: padded head_dim; lanes: padded page
  std::vector<float> plain, turned, rotated, sum, top, total, scores, scratch;
  std::vector<float> bias_query, bias_scores;  // as plain and scores, for the key bias
  Bytes query_bytes, weight_bytes;             // rotated and scores, where packed pages are read in integers
  std::vector<int32_t> from, to;               // lanes of a tile that a row sees

  Queries(int64_t max_rows, int64_t head_dim, int64_t page)
      : rows(0), stride(padded(head_dim)), lanes(padded(page)), plain(max_rows * stride),
        turned(max_rows * stride), rotated(max_rows * stride), sum(max_rows * stride), top(max_rows), total(max_rows),
        scores(max_rows * lanes), scratch(head_dim),
        query_bytes(max_rows, stride), weight_bytes(max_rows, lanes), from(max_rows), to(max_rows) {}

  Lines lines(int64_t row, int64_t count) { return {scores.data() + row * lanes, count, lanes}; }
  Softmax softmax(int64_t row) { return {&from[row], &to[row], &top[row], &total[row], &sum[row * stride], stride}; }
};

// What some rows read of some segments: [rows][width of], sum, top and total.
struct Partial {
  float* at;
  int64_t stride;

  Partial(float* rows, int64_t head_dim) : at(rows), stride(padded(head_dim)) {}
  static int64_t width_of(int64_t head_dim) { return padded(head_dim) + 2; }
  float* row(int64_t r) const { return at + r * (stride + 2); }
  float total(int64_t r) const { return row(r)[stride + 1]; }
};

struct Workspace {
  int64_t dim, page, rows;
  Tile tile;
  Queries queries;
  std::vector<float> segment, packed, exact;
  Workspace(const kvedge_shape& s, int64_t most_rows)
      : dim(s.head_dim), page(s.page), rows(most_rows), tile(dim, page), queries(rows, dim, page),
        segment(rows * Partial::width_of(dim)), packed(segment.size()), exact(segment.size()) {}
};

void load_packed_query(const kvedge_shape& s, int64_t r, Queries& q) {
  float* rotated = q.rotated.data() + r * q.stride;
  std::memcpy(rotated, q.plain.data() + r * q.stride, sizeof(float) * s.head_dim);
  rotate(rotation_for(s.head_dim), rotated, 1, q.scratch.data());
  if (byte_loops(s) == nullptr) return;
  Bytes& to = q.query_bytes;
  byte_loops(s)->query(rotated, s.head_dim, to.x.data() + r * to.stride, &to.factor[r], &to.start[r]);
  to.factor[r] *= byte_step_of(key_code(s));
}

void load_sink_query(const kvedge_shape& s, const kvedge_step& step, int64_t token, int64_t r, Queries& q) {
  const float* plain = q.plain.data() + r * q.stride;
  float* turned = q.turned.data() + r * q.stride;
  const int64_t angles = token * s.rotary_pairs;
  if (step.sink_cos != nullptr)
    turn(s, step.sink_cos + angles, step.sink_sin + angles, -1.0f, plain, turned);
  else
    std::memcpy(turned, plain, sizeof(float) * s.head_dim);
}

// As the tiles of a segment want them.
void load_queries(const kvedge_shape& s, const kvedge_step& step, const Block& block, const Segment& segment, Queries& q) {
  q.rows = rows_of(s, block);
  for (int64_t r = 0; r < q.rows; ++r) {
    const RowPosition at(s, step, block, r);
    float* plain = q.plain.data() + r * q.stride;
    for (int64_t d = 0; d < s.head_dim; ++d) plain[d] = step.q[at.q + d] * s.scale;
    if (segment.packed) load_packed_query(s, r, q);
    if (segment.sinks) load_sink_query(s, step, at.token, r, q);
  }
}

void begin_segment(Queries& q) {
  std::fill_n(q.top.begin(), q.rows, -INFINITY);
  std::fill_n(q.total.begin(), q.rows, 0.0f);
  std::fill_n(q.sum.begin(), q.rows * q.stride, 0.0f);
}

void begin_merge(const Partial& to, int64_t rows) {
  std::fill(to.at, to.row(rows), 0.0f);
  for (int64_t r = 0; r < rows; ++r) to.row(r)[to.stride] = -INFINITY;
}

void copy_segment(const Queries& q, const Partial& to) {
  for (int64_t r = 0; r < q.rows; ++r) {
    float* out = to.row(r);
    std::copy_n(&q.sum[r * q.stride], q.stride, out);
    out[q.stride] = q.top[r];
    out[q.stride + 1] = q.total[r];
  }
}

void merge_rows(const Partial& from, int64_t rows, const Partial& to) {
  for (int64_t r = 0; r < rows; ++r) loops().merge(from.row(r), to.stride, to.row(r));
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

// scores of rows [row, row + rows) = query . keys
void score(const kvedge_shape& s, const Tile& tile, const std::vector<float>& query, int64_t row, int64_t rows, Queries& q) {
  float* scores = q.scores.data() + row * q.lanes;
  std::fill_n(scores, rows * q.lanes, 0.0f);
  const Rows floats = {query.data() + row * q.stride, rows, q.stride};
  if (tile.packed && byte_loops(s) != nullptr) {
    const ByteRows bytes = q.query_bytes.rows(row, rows);
    tile.direct ? byte_loops(s)->packed_product[true](tile.key_codes, bytes, scores)
                : byte_loops(s)->product[true](tile.key_bytes.data(), q.lanes, s.head_dim, bytes, scores);
  } else if (tile.direct) {
    loops().packed_product(tile.key_codes, floats, scores);
  } else {
    loops().product(tile.keys.data(), q.lanes, s.head_dim, floats, scores);
  }
}

// scores of a packed tile, as products left them, become what the queries see
void finish_scores(const kvedge_shape& s, const kvedge_step& step, const Tile& tile, int64_t row, int64_t rows, Queries& q) {
  loops().rescale_keys(q.lines(row, rows), tile.key_scale.data(), {&q.plain[row * q.stride], rows, q.stride},
                       tile.mean.data());
  if (s.bias_pairs == 0) return;
  score_bias(s, step, tile, tile.first, row, rows, q);
  for (int64_t i = row * q.lanes; i < (row + rows) * q.lanes; ++i) q.scores[i] += q.bias_scores[i];
}

// sums += weights . values of an exact tile: first those in the pool, then copies
void add_exact(const kvedge_shape& s, const Tile& tile, const Rows& weights, float* sums) {
  const int64_t dim = s.head_dim, from = tile.from - tile.first, copied = tile.copied - tile.first, last = tile.last - tile.first;
  const Rows of_pool = {weights.x + from, weights.count, weights.stride};
  if (from < copied && s.hot_is_half)
    loops().halves.values(static_cast<const uint16_t*>(tile.pool_values) + from * dim, copied - from, dim, of_pool, sums, tile.soon);
  else if (from < copied)
    loops().floats.values(static_cast<const float*>(tile.pool_values) + from * dim, copied - from, dim, of_pool, sums, tile.soon);
  loops().product(tile.values.data() + copied * tile.value_stride, tile.value_stride, last - copied,
                  {weights.x + copied, weights.count, weights.stride}, sums);
}

// sums of rows [row, row + rows) += weights . values
void accumulate(const kvedge_shape& s, const Tile& tile, int64_t row, int64_t rows, Queries& q) {
  const float* weights = q.scores.data() + row * q.lanes;
  float* sums = q.sum.data() + row * q.stride;
  if (tile.packed && byte_loops(s) != nullptr) {
    Bytes& to = q.weight_bytes;
    byte_loops(s)->weights(q.lines(row, rows), tile.value_scale.data(), byte_step_of(value_code(s)),
                           to.x.data() + row * to.stride, &to.factor[row]);
    tile.direct ? byte_loops(s)->packed_product[false](tile.value_codes, to.rows(row, rows), sums)
                : byte_loops(s)->product[false](tile.value_bytes.data(), q.stride, s.page, to.rows(row, rows), sums);
    return;
  }
  if (!tile.packed) return add_exact(s, tile, {weights, rows, q.lanes}, sums);
  loops().rescale(q.lines(row, rows), tile.value_scale.data());
  if (tile.direct)
    loops().packed_product(tile.value_codes, {weights, rows, q.lanes}, sums);
  else
    loops().product(tile.values.data(), tile.value_stride, s.page, {weights, rows, q.lanes}, sums);
}

// Inline, or GCC takes a function that only prefetches for one that does nothing, and leaves out its calls.
#define KVEDGE_PREFETCHES __attribute__((always_inline)) inline

KVEDGE_PREFETCHES void prefetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
}

// Reads the tiles of one segment, for all rows of a block.
struct Reader {
  const kvedge_shape& s;
  const kvedge_step& step;
  const Geometry& g;
  const Block& block;
  Tile& tile;
  Queries& q;

  // A tile is read in less time than memory takes to begin answering, and memory takes few requests at a time: a packed
  // page is asked for in parts, between the loops that read the one before.
  void soon_packed(int64_t number) {
    tile.soon = reinterpret_cast<const char*>(packed_head(s, step, block.b, number, block.head));
  }
  // Keys of an exact page are asked for while the values before them are read, and its values while its keys are.
  void soon_exact(int64_t first) {
    if (first < step.context[block.b]) tile.soon = pool_keys(first);
  }

  // What comes first is asked for while the queries are prepared.
  KVEDGE_PREFETCHES void begin(const Segment& segment) {
    if (segment.packed) return soon_packed(segment.first), ask_for_page();
    const int64_t first = segment.sinks ? 0 : g.page_start(segment.first);
    if (first >= step.context[block.b]) return;  // nothing of it is in the pool
    soon_exact(first);
    prefetch(tile.soon, pool_size() * s.page * s.head_dim);
  }
  void sinks(int64_t first, int64_t last) {
    load_exact(s, step, g, block.b, block.head, first, first, last, tile);
    read(q.turned, true);
  }
  void exact(int64_t first, int64_t from, int64_t last) {
    load_exact(s, step, g, block.b, block.head, first, from, last, tile);
    read(q.plain, false);
  }
  void packed(int64_t number) {
    if (is_whole(number)) return read_whole(packed_page(s, step, block.b, number, block.head));
    ask_for_page();
    // Integers have no loop for what comes after the last whole group.
    const bool whole = byte_loops(s) == nullptr || (s.head_dim % kGroup == 0 && s.page % kGroup == 0);
    load_packed(s, step, g, block.b, block.head, number, whole && q.rows <= loops().direct_rows, tile);
    read(q.rotated, false);
  }

 private:
  // Whether the page has loops of its own: every row sees all of it, and only the softmax is between its products.
  bool is_whole(int64_t number) const {
    return byte_loops(s) != nullptr && s.page == kWholePage && s.head_dim % kGroup == 0 &&
           q.rows <= loops().direct_rows && s.bias_pairs == 0 && s.softcap == 0.0f &&
           g.window_start(block.last - 1) <= g.page_start(number);
  }

  KVEDGE_PREFETCHES void ask_for_page() {
    for (int64_t part = 0; part < kParts; ++part) ask_for_part(part);
  }
  KVEDGE_PREFETCHES void ask_for_part(int64_t part) {
    const int64_t bytes = (layout_of(s).head_words * int64_t(sizeof(int32_t)) / kParts / kLine + 1) * kLine;
    prefetch(tile.soon + part * bytes, bytes);
  }
  static constexpr int64_t kParts = 3;

  KVEDGE_PREFETCHES void read_whole(const PackedPage& page) {
    const ByteLoops& in = *byte_loops(s);
    const Lines lines = q.lines(0, q.rows);
    Bytes& weights = q.weight_bytes;
    std::fill_n(lines.x, q.rows * q.lanes, 0.0f);
    ask_for_part(0);
    in.packed_product[true](page.keys, q.query_bytes.rows(0, q.rows), lines.x);
    ask_for_part(1);
    in.weigh_page(lines, page.scales, {q.plain.data(), q.rows, q.stride}, byte_step_of(value_code(s)), q.softmax(0),
                  weights.x.data(), weights.factor.data());
    ask_for_part(2);
    in.packed_product[false](page.values, weights.rows(0, q.rows), q.sum.data());
  }

  int64_t pool_size() const { return s.hot_is_half ? sizeof(uint16_t) : sizeof(float); }
  const char* pool_keys(int64_t first) const {
    return static_cast<const char*>(step.hot) + pool_size() * hot_index(s, step, block.b, g.hot_slot(first), 0, block.head);
  }

  void read(const std::vector<float>& query, bool sinks) {
    int64_t first = q.rows, last = 0;  // rows that see something
    for (int64_t r = 0; r < q.rows; ++r) {
      const Visible part = visible(g, block.first + r / (s.heads / s.kv_heads), tile.first, tile.last, sinks);
      q.from[r] = part.from;
      q.to[r] = part.to;
      if (part.from < part.to) first = std::min(first, r), last = r + 1;
    }
    if (first < last) read_rows(query, first, last - first);
  }

  void read_rows(const std::vector<float>& query, int64_t row, int64_t rows) {
    score(s, tile, query, row, rows, q);
    if (tile.packed) finish_scores(s, step, tile, row, rows, q);
    if (s.softcap > 0.0f)
      for (int64_t i = row * q.lanes; i < (row + rows) * q.lanes; ++i)
        q.scores[i] = s.softcap * std::tanh(q.scores[i] / s.softcap);
    loops().weigh(q.lines(row, rows), q.softmax(row));
    accumulate(s, tile, row, rows, q);
  }
};

// Returns the number of packed pages read.
int32_t read_segment_of(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block,
                        const Segment& segment, Workspace& w) {
  Reader reader = {s, step, g, block, w.tile, w.queries};
  reader.begin(segment);
  load_queries(s, step, block, segment, w.queries);
  begin_segment(w.queries);
  if (segment.packed && s.bias_pairs > 0) load_bias(s, step, block.head, w.tile);
  return read_segment(g, block, segment, reader);
}

// Takes the packed segments of a block and the exact ones together, where there are packed ones, and writes its rows.
void write_out(const kvedge_shape& s, const kvedge_step& step, const Block& block, const Partial* packed,
               const Partial& exact, float* scratch) {
  for (int64_t r = 0; r < rows_of(s, block); ++r) {
    float* out = step.out + RowPosition(s, step, block, r).out;
    if (packed != nullptr) {
      unrotate(rotation_for(s.head_dim), packed->row(r), 1, scratch);
      loops().merge(packed->row(r), exact.stride, exact.row(r));
    }
    for (int64_t d = 0; d < s.head_dim; ++d) out[d] = exact.row(r)[d] / exact.total(r);
  }
}

// Merges the segments of a block, as read(number, segment) gives them, and writes its rows.
template <class Read>
void merge_block(const kvedge_shape& s, const kvedge_step& step, const Block& block, const Segments& segments,
                 Workspace& w, Read read) {
  const int64_t rows = rows_of(s, block);
  const Partial packed = {w.packed.data(), s.head_dim}, exact = {w.exact.data(), s.head_dim};
  begin_merge(packed, rows);
  begin_merge(exact, rows);
  for (int64_t n = 0; n < segments.count; ++n) merge_rows(read(n), rows, n < segments.packed_count ? packed : exact);
  write_out(s, step, block, segments.packed_count > 0 ? &packed : nullptr, exact, w.queries.scratch.data());
}

int64_t query_pages(const Geometry& g, const kvedge_step& step, int64_t b) {
  if (step.num_new[b] == 0) return 0;
  return g.page_of(int64_t(step.context[b]) + step.num_new[b] - 1) - g.page_of(step.context[b]) + 1;
}

bool segments_are_tasks(const kvedge_shape& s) { return int64_t(s.batch) * s.new_tokens <= kFewQueries; }

// Calls body(block, number of its first task) for the blocks of every row and kv head, in order.
template <class Body>
int64_t for_blocks(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, Body body) {
  int64_t task = 0;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t end = int64_t(step.context[b]) + step.num_new[b];
    for (int64_t n = 0; n < query_pages(g, step, b); ++n) {
      const int64_t page = g.page_of(step.context[b]) + n;
      const int64_t first = std::max<int64_t>(step.context[b], g.page_start(page));
      for (int64_t head = 0; head < s.kv_heads; ++head) {
        const Block block = {b, head, first, std::min(end, g.page_start(page + 1)), page};
        body(block, task);
        task += segments_are_tasks(s) ? Segments(g, block).count : 1;
      }
    }
  }
  return task;
}

// Floats for the segment of one task, in a step where segments are tasks.
int64_t partial_floats(const kvedge_shape& s) {
  return kFewQueries * (s.heads / s.kv_heads) * Partial::width_of(s.head_dim);
}

Partial partial_of(const kvedge_shape& s, const kvedge_step& step, int64_t task) {
  return {step.partial + task * partial_floats(s), s.head_dim};
}

// Grows to the largest step of this thread and stays: no allocation in the long run.
Workspace& workspace_for(const kvedge_shape& s, int64_t rows) {
  thread_local std::vector<Workspace> kept;
  for (Workspace& w : kept) {
    if (w.dim != s.head_dim || w.page != s.page) continue;
    return w.rows >= rows ? w : w = Workspace(s, rows);
  }
  kept.emplace_back(s, rows);
  return kept.back();
}

int32_t attend_segment(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block,
                       int64_t number, const Partial& to) {
  Workspace& w = workspace_for(s, rows_of(s, block));
  const int32_t packed_pages = read_segment_of(s, step, g, block, Segments(g, block)[number], w);
  copy_segment(w.queries, to);
  return packed_pages;
}

int32_t attend_few(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block) {
  Workspace& w = workspace_for(s, rows_of(s, block));
  const Segments segments(g, block);
  int32_t packed_pages = 0;
  merge_block(s, step, block, segments, w, [&](int64_t n) {
    packed_pages += read_segment_of(s, step, g, block, segments[n], w);
    const Partial segment = {w.segment.data(), s.head_dim};
    copy_segment(w.queries, segment);
    return segment;
  });
  return packed_pages;
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
  std::fill_n(step->pages_read, shape->batch, 0);
  kvedge::clear_padding(*shape, *step);
  return kvedge::for_blocks(*shape, *step, g, [](const kvedge::Block&, int64_t) {});
}

int64_t kvedge_attend_scratch(const kvedge_shape* shape, int64_t tasks) {
  return kvedge::segments_are_tasks(*shape) ? tasks * kvedge::partial_floats(*shape) : 0;
}

void kvedge_attend_task(const kvedge_shape* shape, const kvedge_step* step, int64_t task) {
  using namespace kvedge;
  const kvedge_shape& s = *shape;
  const Geometry g(s, *step);
  Block block = {};
  int64_t first_task = 0;
  for_blocks(s, *step, g, [&](const Block& one, int64_t first) {
    if (first <= task) block = one, first_task = first;
  });
  int32_t packed_pages = 0;
  if (segments_are_tasks(s))
    packed_pages = attend_segment(s, *step, g, block, task - first_task, partial_of(s, *step, task));
  else if (rows_of(s, block) >= kManyRows)
    packed_pages = attend_many(s, *step, g, block);
  else
    packed_pages = attend_few(s, *step, g, block);
  __atomic_fetch_add(&step->pages_read[block.b], packed_pages, __ATOMIC_RELAXED);
}

void kvedge_attend_finish(const kvedge_shape* shape, const kvedge_step* step) {
  using namespace kvedge;
  const kvedge_shape& s = *shape;
  if (!segments_are_tasks(s)) return;
  const Geometry g(s, *step);
  for_blocks(s, *step, g, [&](const Block& block, int64_t first_task) {
    Workspace& w = workspace_for(s, rows_of(s, block));
    merge_block(s, *step, block, Segments(g, block), w, [&](int64_t n) { return partial_of(s, *step, first_task + n); });
  });
}

}  // extern "C"
