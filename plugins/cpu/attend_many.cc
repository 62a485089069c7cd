// A block of many queries: they are the lanes, up to 64 at a time, and every tile meets them all. What attend.cc does
// with few, to the same bits.
#include <cmath>
#include <cstring>
#include <vector>

#include "attend_block.h"
#include "codebook.h"
#include "rotation.h"
#include "scratch.h"
#include "tokens.h"
#include "turn.h"

namespace kvedge {
namespace {

constexpr int64_t kMostLanes = 64;
constexpr int64_t up_to(int64_t multiple, int64_t n) { return (n + multiple - 1) / multiple * multiple; }

// Keys by token [T][D] and values by channel [D][stride], of one page of one head. Packed ones stay rotated and
// unscaled, as bytes where they are read in integers.
struct Tile {
  int64_t first = 0, from = 0, last = 0;  // orders: [from, last), and `first` is token 0
  int64_t stride;
  Aligned<float> keys, values, rows, expanded, key_scale, value_scale, mean, bias;
  int64_t key_stride, value_stride;  // of bytes
  Aligned<int32_t> key_bytes, value_bytes, words;

  Tile(int64_t dim, int64_t page)
      : stride(padded(page)), keys(stride * dim), values(padded(dim) * stride), rows(stride * dim),
        expanded(stride * padded(dim)), key_scale(page), value_scale(page), mean(dim), bias(0),
        key_stride(up_to(kDepthBytes, dim)), value_stride(up_to(kDepthBytes, page)),
        key_bytes((stride + kRowsBehind) * key_stride / 4), value_bytes((padded(dim) + kRowsBehind) * value_stride / 4),
        words(std::max(key_stride * stride, value_stride * padded(dim)) / 4) {}
};

// What some queries read of some segments: [D][lanes], and by lane.
struct Partial {
  Aligned<float> sum, top, total;

  explicit Partial(int64_t dim) : sum(dim * kMostLanes), top(kMostLanes), total(kMostLanes) {}
};

// Up to 64 rows of a block, from `row` on.
struct Queries {
  int64_t row = 0, rows = 0, lanes = 0;
  int64_t orders[kMostLanes];
  Partial segment, packed, exact;  // the one that is read, and those of its kind so far
  Aligned<float> plain, turned, rotated;                // [D][lanes]
  Aligned<float> scores, bias_query, bias_scores;       // [T][lanes]; [2F][lanes]
  Aligned<float> offsets, query_factor, weight_factor;  // [lanes]
  Aligned<int32_t> from, to, query_start, query_words, weight_words, sums;

  Queries(int64_t dim, int64_t page)
      : segment(dim), packed(dim), exact(dim), plain(dim * kMostLanes), turned(dim * kMostLanes),
        rotated(dim * kMostLanes), scores(page * kMostLanes), bias_query(0), bias_scores(0), offsets(kMostLanes),
        query_factor(kMostLanes), weight_factor(kMostLanes), from(kMostLanes), to(kMostLanes), query_start(kMostLanes),
        query_words(up_to(kDepthBytes, dim) / 4 * kMostLanes), weight_words(up_to(kDepthBytes, page) / 4 * kMostLanes),
        sums((std::max(dim, page) + kRowsBehind) * kMostLanes) {}
  LaneBytes query_bytes() { return {query_words.data(), query_factor.data(), query_start.data()}; }
  LaneBytes weight_bytes() { return {weight_words.data(), weight_factor.data(), nullptr}; }
  QueryLanes lanes_of(Partial& p, int64_t dim) {
    return {lanes, dim, from.data(), to.data(), p.top.data(), p.total.data(), p.sum.data()};
  }
};

struct Workspace {
  int64_t dim, page;
  Tile tile;
  std::vector<Queries> queries;
  Aligned<float> rows, mixed;  // [64][D]; [odd][lanes]

  Workspace(int64_t head_dim, int64_t tokens)
      : dim(head_dim), page(tokens), tile(head_dim, tokens), rows(kMostLanes * head_dim), mixed(head_dim * kMostLanes) {}
};

// Grows to the largest step of this thread and stays: no allocation in the long run.
Workspace& workspace_for(const kvedge_shape& s, int64_t rows) {
  thread_local std::vector<Workspace> kept;
  Workspace* found = nullptr;
  for (Workspace& w : kept)
    if (w.dim == s.head_dim && w.page == s.page) found = &w;
  if (found == nullptr) found = &kept.emplace_back(s.head_dim, s.page);
  while (int64_t(found->queries.size()) * kMostLanes < rows) found->queries.emplace_back(s.head_dim, s.page);
  return *found;
}

// x [D][lanes] in place.
void rotate_lanes(int64_t dim, float* x, int64_t lanes, bool back, float* scratch) {
  const Rotation& r = rotation_for(dim);
  mix(r, x, lanes, back, scratch);
  loops().many.butterfly(x, r.power, r.odd * lanes, float(1.0 / std::sqrt(double(r.power))));
}

void load_queries(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block, Workspace& w,
                  Queries& q) {
  const int64_t dim = s.head_dim;
  float* rows = w.rows.data();
  std::fill_n(rows, q.lanes * dim, 0.0f);
  for (int64_t r = 0; r < q.rows; ++r) {
    const RowPosition at(s, step, block, q.row + r);
    for (int64_t d = 0; d < dim; ++d) rows[r * dim + d] = step.q[at.q + d] * s.scale;
    q.orders[r] = at.query;
  }
  loops().transpose(rows, q.lanes, dim, q.plain.data(), q.lanes);
  if (g.packs) {
    std::memcpy(q.rotated.data(), q.plain.data(), sizeof(float) * dim * q.lanes);
    rotate_lanes(dim, q.rotated.data(), q.lanes, false, w.mixed.data());
    if (many_byte_loops(s) != nullptr)
      many_byte_loops(s)->queries(q.rotated.data(), dim, q.lanes, byte_step_of(key_code(s)), q.query_bytes());
  }
  if (step.sink_cos == nullptr) return;
  float* turned = w.mixed.data();
  std::fill_n(turned, q.lanes * dim, 0.0f);
  for (int64_t r = 0; r < q.rows; ++r) {
    const int64_t angles = RowPosition(s, step, block, q.row + r).token * s.rotary_pairs;
    turn(s, step.sink_cos + angles, step.sink_sin + angles, -1.0f, rows + r * dim, turned + r * dim);
  }
  loops().transpose(turned, q.lanes, dim, q.turned.data(), q.lanes);
}

void begin_segment(const kvedge_shape& s, Queries& q) {
  std::fill_n(q.segment.top.data(), q.lanes, -INFINITY);
  std::fill_n(q.segment.total.data(), q.lanes, 0.0f);
  std::fill_n(q.segment.sum.data(), s.head_dim * q.lanes, 0.0f);
}

// The first segment of a kind is what the others are merged into.
void end_segment(const kvedge_shape& s, bool first, Queries& q, Partial& kind) {
  if (first)
    std::swap(q.segment, kind);
  else
    loops().many.merge(q.lanes_of(q.segment, s.head_dim), q.lanes_of(kind, s.head_dim));
}

// bytes [lanes][stride] of words [depth / 4][lanes], which are four bytes of a lane
void turn_words(int32_t* words, int64_t depth, int64_t lanes, int32_t* bytes, int64_t stride) {
  const int64_t rows = up_to(8, depth / 4);
  std::fill_n(words + depth / 4 * lanes, (rows - depth / 4) * lanes, 0);
  loops().transpose(reinterpret_cast<float*>(words), rows, lanes, reinterpret_cast<float*>(bytes), stride / 4);
}

// Matrix tiles, for as long as it lives.
struct Tiles {
  const ManyByteLoops* bytes;

  explicit Tiles(const ManyByteLoops* of) : bytes(of) {
    if (bytes != nullptr) bytes->take_tiles();
  }
  ~Tiles() {
    if (bytes != nullptr) bytes->give_tiles();
  }
};

// Reads the tiles of one segment, for all queries of a block.
struct Reader {
  const kvedge_shape& s;
  const kvedge_step& step;
  const Geometry& g;
  const Block& block;
  Workspace& w;
  int64_t count;  // of w.queries

  void soon_packed(int64_t) {}  // many queries read a tile for longer than memory takes
  void soon_exact(int64_t) {}
  void sinks(int64_t first, int64_t last) {
    load_exact(first, first, last);
    for (int64_t n = 0; n < count; ++n) {
      Queries& q = w.queries[n];
      if (sees(q, true)) read_exact(q, step.sink_cos == nullptr ? q.plain : q.turned);
    }
  }
  void exact(int64_t first, int64_t from, int64_t last) {
    load_exact(first, from, last);
    for (int64_t n = 0; n < count; ++n)
      if (sees(w.queries[n], false)) read_exact(w.queries[n], w.queries[n].plain);
  }
  void packed(int64_t number) {
    load_packed(number);
    for (int64_t n = 0; n < count; ++n)
      if (sees(w.queries[n], false)) read_packed(w.queries[n]);
  }

 private:
  void load_exact(int64_t first, int64_t from, int64_t last) {
    Tile& tile = w.tile;
    const int64_t dim = s.head_dim, at = (from - first) * dim;
    tile.first = first, tile.from = from, tile.last = last;
    load_tokens(s, step, g, block.b, block.head, 0, from, last, tile.keys.data() + at, dim);
    load_tokens(s, step, g, block.b, block.head, 1, from, last, tile.rows.data() + at, dim);
    const int64_t begin = (from - first) / 8 * 8, end = up_to(8, last - first);
    loops().transpose(tile.rows.data() + begin * dim, end - begin, dim, tile.values.data() + begin, tile.stride);
  }

  void load_packed(int64_t number) {
    Tile& tile = w.tile;
    const PackedPage page = packed_page(s, step, block.b, number, block.head);
    tile.first = tile.from = g.page_start(number);
    tile.last = tile.first + s.page;
    if (byte_loops(s) != nullptr) {
      byte_loops(s)->expand[true](page.keys, tile.words.data());
      turn_words(tile.words.data(), s.head_dim, padded(s.page), tile.key_bytes.data(), tile.key_stride);
      byte_loops(s)->expand[false](page.values, tile.words.data());
      turn_words(tile.words.data(), s.page, padded(s.head_dim), tile.value_bytes.data(), tile.value_stride);
    } else {
      loops().expand(page.keys, tile.expanded.data());
      loops().transpose(tile.expanded.data(), s.head_dim, padded(s.page), tile.keys.data(), s.head_dim);
      loops().expand(page.values, tile.expanded.data());
      loops().transpose(tile.expanded.data(), s.page, padded(s.head_dim), tile.values.data(), tile.stride);
    }
    page.read_scales(tile.key_scale.data(), tile.value_scale.data(), tile.mean.data());
  }

  // Says what every query sees of the tile; false if none sees any.
  bool sees(Queries& q, bool sinks) const {
    bool any = false;
    for (int64_t lane = 0; lane < q.lanes; ++lane) {
      const Visible part = lane < q.rows ? visible(g, q.orders[lane], w.tile.first, w.tile.last, sinks) : Visible{0, 0};
      const bool some = part.from < part.to;
      q.from[lane] = some ? part.from : 0;
      q.to[lane] = some ? part.to : 0;
      any = any || some;
    }
    return any;
  }

  void read_exact(Queries& q, Aligned<float>& query) {
    const Tile& tile = w.tile;
    const int64_t skipped = tile.from - tile.first, tokens = tile.last - tile.from, dim = s.head_dim;
    float* scores = q.scores.data() + skipped * q.lanes;
    std::fill_n(scores, tokens * q.lanes, 0.0f);
    loops().product(query.data(), q.lanes, dim, {tile.keys.data() + skipped * dim, tokens, dim}, scores);
    weigh(q);
    loops().product(scores, q.lanes, tokens, {tile.values.data() + skipped, dim, tile.stride}, q.segment.sum.data());
  }

  void read_packed(Queries& q) {
    const Tile& tile = w.tile;
    const int64_t dim = s.head_dim, lanes = q.lanes;
    const auto* bytes = many_byte_loops(s);
    float* scores = q.scores.data();
    loops().many.mean(q.plain.data(), tile.mean.data(), dim, lanes, q.offsets.data());
    if (bytes != nullptr) {
      bytes->sums[false](byte_rows(tile.key_bytes, s.page, dim, tile.key_stride), q.query_words.data(), lanes, q.sums.data());
      bytes->scores(q.sums.data(), s.page, lanes, q.query_bytes(), tile.key_scale.data(), q.offsets.data(), scores);
    } else {
      std::fill_n(scores, s.page * lanes, 0.0f);
      loops().product(q.rotated.data(), lanes, dim, {tile.keys.data(), s.page, dim}, scores);
      loops().many.rescale_keys(scores, s.page, lanes, tile.key_scale.data(), q.offsets.data());
    }
    if (s.bias_pairs > 0) add_bias(q);
    weigh(q);
    if (bytes != nullptr) {
      bytes->weights(scores, s.page, lanes, tile.value_scale.data(), byte_step_of(value_code(s)), q.weight_bytes());
      bytes->sums[true](byte_rows(tile.value_bytes, dim, s.page, tile.value_stride), q.weight_words.data(), lanes, q.sums.data());
      bytes->add_sums(q.sums.data(), dim, lanes, q.weight_factor.data(), q.segment.sum.data());
    } else {
      loops().many.rescale(scores, s.page, lanes, tile.value_scale.data());
      loops().product(scores, lanes, s.page, {tile.values.data(), dim, tile.stride}, q.segment.sum.data());
    }
  }

  static ByteMatrix byte_rows(const Aligned<int32_t>& bytes, int64_t rows, int64_t depth, int64_t stride) {
    return {reinterpret_cast<const uint8_t*>(bytes.data()), rows, depth, stride};
  }

  void weigh(Queries& q) {
    const int64_t tokens = w.tile.last - w.tile.first;
    if (s.softcap > 0.0f)
      for (int64_t i = 0; i < tokens * q.lanes; ++i) q.scores[i] = s.softcap * std::tanh(q.scores[i] / s.softcap);
    loops().many.weigh(q.scores.data(), tokens, q.lanes_of(q.segment, s.head_dim));
  }

  // The query is turned to the page's first position, and meets the bias there.
  void add_bias(Queries& q) {
    const int64_t pairs = s.bias_pairs, lanes = q.lanes;
    q.bias_query.grow(2 * pairs * kMostLanes);
    q.bias_scores.grow(s.page * kMostLanes);
    for (int64_t i = 0; i < pairs; ++i) {
      const Turn turn = bias_turn(step, i, w.tile.first);
      const float *a = q.plain.data() + step.bias_channels[i] * lanes, *b = q.plain.data() + step.bias_channels[pairs + i] * lanes;
      float *first = q.bias_query.data() + i * lanes, *second = first + pairs * lanes;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        first[lane] = a[lane] * turn.cos + b[lane] * turn.sin;
        second[lane] = b[lane] * turn.cos - a[lane] * turn.sin;
      }
    }
    std::fill_n(q.bias_scores.data(), s.page * lanes, 0.0f);
    loops().product(q.bias_query.data(), lanes, 2 * pairs, {w.tile.bias.data(), s.page, 2 * pairs}, q.bias_scores.data());
    for (int64_t i = 0; i < s.page * lanes; ++i) q.scores[i] += q.bias_scores[i];
  }
};

// The key bias at each offset of a page at position 0, by token: [T][2F].
void load_bias(const kvedge_shape& s, const kvedge_step& step, int64_t head, Tile& tile) {
  const int64_t parts = 2 * s.bias_pairs;
  tile.bias.grow(s.page * parts);
  for (int64_t i = 0; i < parts; ++i)
    for (int64_t t = 0; t < s.page; ++t) tile.bias[t * parts + i] = step.bias_page[(head * parts + i) * s.page + t];
}

// Takes the packed segments and the exact ones together, where there are packed ones, and writes rows of the output.
void write_out(const kvedge_shape& s, const kvedge_step& step, const Block& block, bool packed, Workspace& w, Queries& q) {
  const int64_t dim = s.head_dim, lanes = q.lanes;
  float* sum = q.exact.sum.data();
  if (packed) {
    rotate_lanes(dim, q.packed.sum.data(), lanes, true, w.mixed.data());
    loops().many.merge(q.lanes_of(q.packed, dim), q.lanes_of(q.exact, dim));
  }
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t i = d * lanes, lane = 0; lane < lanes; ++lane) sum[i + lane] /= q.exact.total[lane];
  loops().transpose(sum, dim, lanes, w.rows.data(), dim);
  for (int64_t r = 0; r < q.rows; ++r)
    std::memcpy(step.out + RowPosition(s, step, block, q.row + r).out, w.rows.data() + r * dim, sizeof(float) * dim);
}

}  // namespace

int32_t attend_many(const kvedge_shape& s, const kvedge_step& step, const Geometry& g, const Block& block) {
  const int64_t rows = rows_of(s, block), count = (rows + kMostLanes - 1) / kMostLanes;
  const Segments segments(g, block);
  Workspace& w = workspace_for(s, rows);
  for (int64_t n = 0; n < count; ++n) {
    Queries& q = w.queries[n];
    q.row = n * kMostLanes;
    q.rows = std::min(kMostLanes, rows - q.row);
    q.lanes = padded(q.rows);
    load_queries(s, step, g, block, w, q);
  }
  if (s.bias_pairs > 0) load_bias(s, step, block.head, w.tile);
  const Tiles tiles(many_byte_loops(s));
  Reader reader = {s, step, g, block, w, count};
  int32_t packed_pages = 0;
  for (int64_t number = 0; number < segments.count; ++number) {
    for (int64_t n = 0; n < count; ++n) begin_segment(s, w.queries[n]);
    packed_pages += read_segment(g, block, segments[number], reader);
    for (int64_t n = 0; n < count; ++n) {
      Queries& q = w.queries[n];
      const bool first = number == 0 || number == segments.packed_count;
      end_segment(s, first, q, number < segments.packed_count ? q.packed : q.exact);
    }
  }
  for (int64_t n = 0; n < count; ++n) write_out(s, step, block, segments.packed_count > 0, w, w.queries[n]);
  return packed_pages;
}

}  // namespace kvedge
