// Inner loops of attend. Built once per instruction set: the build defines KVEDGE_LOOPS as the name of the
// table. Nothing here may be inline with external linkage, or the linker could hand code for a newer CPU to an
// older one.
#include "loops.h"

#include "exp.h"
#include "query_lanes.h"
#include "row_softmax.h"
#include "words.h"
#ifdef KVEDGE_BYTE_DOTS
#include "byte_levels.h"
#include "query_bytes.h"
#include "whole_page.h"
#endif
#ifdef __AMX_INT8__
#include "query_amx.h"
#endif

namespace kvedge {
namespace {

static_assert(kLanes % kWidth == 0, "strides are whole vectors");

// Vectors of sums per row that fit the registers beside levels and tables.
template <int ROWS>
constexpr int kSide = kRegisters == 32 ? (ROWS < 4 ? 4 : 2) : ROWS == 1 ? 4 : ROWS < 4 ? 2 : 1;

// Rows and lanes of one register tile of y, [rows][stride], and the left operand that belongs to it.
template <int ROWS, int VECS>
struct Sums {
  Floats sum[ROWS][VECS];

  KVEDGE_MEMBER Sums(const float* y, int64_t stride) {
    repeat<ROWS * VECS>(KVEDGE_EACH(n) { sum[n / VECS][n % VECS] = load_floats(y + n / VECS * stride + n % VECS * kWidth); });
  }
  KVEDGE_MEMBER void store(float* y, int64_t stride) const {
    repeat<ROWS * VECS>(KVEDGE_EACH(n) { store_floats(y + n / VECS * stride + n % VECS * kWidth, sum[n / VECS][n % VECS]); });
  }
  // x points to one element of the first row.
  KVEDGE_MEMBER void add(const float* x, int64_t x_stride, const Floats (&level)[VECS]) {
    repeat<ROWS>(KVEDGE_EACH(row) {
      const Floats factor = every_float(x[row * x_stride]);
      repeat<VECS>(KVEDGE_EACH(v) { sum[row][v] = multiply_add(factor, level[v], sum[row][v]); });
    });
  }
};

// Whole groups of VECS vectors of lanes.
template <Code CODE, int ROWS, int VECS>
KVEDGE_INLINE void packed_lanes(const Packed& codes, const Levels<CODE>& levels, const float* x, int64_t x_stride,
                                int64_t lane, float* y) {
  constexpr int kBits = bits_of(CODE);
  using Block = Group<kBits, kGroup / kOctet>;
  const int64_t stride = padded(codes.lanes);
  Sums<ROWS, VECS> sums(y + lane, stride);
  const auto add = [&](const float* from, const auto&... block) __attribute__((always_inline)) {
    repeat<kGroup>(KVEDGE_EACH(i) {
      const Floats level[] = {block.template level<i>(levels)...};
      sums.add(from + i, x_stride, level);
    });
  };
  const int32_t* words = codes.words;
  for (int64_t i = 0; i + kGroup <= codes.depth; i += kGroup, words += kBits * codes.lanes) {
    const auto block = [&](int v) __attribute__((always_inline)) { return Block(words, codes.lanes, lane + v * kWidth); };
    if constexpr (VECS == 1) add(x + i, block(0));
    if constexpr (VECS == 2) add(x + i, block(0), block(1));
    if constexpr (VECS == 4) add(x + i, block(0), block(1), block(2), block(3));
  }
  sums.store(y + lane, stride);
}

template <Code CODE, int ROWS>
void packed_rows(const Packed& codes, const float* x, int64_t x_stride, float* y) {
  const Levels<CODE> levels;
  int64_t lane = 0;
  for (; lane + kSide<ROWS> * kWidth <= codes.lanes; lane += kSide<ROWS> * kWidth)
    packed_lanes<CODE, ROWS, kSide<ROWS>>(codes, levels, x, x_stride, lane, y);
  for (; lane < codes.lanes; lane += kWidth) packed_lanes<CODE, ROWS, 1>(codes, levels, x, x_stride, lane, y);
}

template <Code CODE, int OCTETS>
KVEDGE_INLINE void expand_octets(const int32_t* words, int64_t lanes, int64_t lane, const Levels<CODE>& levels,
                                 float* tile, int64_t stride) {
  const Group<bits_of(CODE), OCTETS> group(words, lanes, lane);
  repeat<kOctet * OCTETS>(KVEDGE_EACH(i) { store_floats(tile + i * stride, group.template level<i>(levels)); });
}

// tile [depth of group][stride] = levels of kWidth lanes of group g; returns its depth.
template <Code CODE>
int64_t expand_group(const Packed& codes, int64_t g, int64_t lane, const Levels<CODE>& levels, float* tile, int64_t stride) {
  const int32_t* words = codes.words + g * bits_of(CODE) * codes.lanes;
  const int64_t depth = codes.depth - g * kGroup;
  if (depth >= 32) return expand_octets<CODE, 4>(words, codes.lanes, lane, levels, tile, stride), 32;
  if (depth == 24) return expand_octets<CODE, 3>(words, codes.lanes, lane, levels, tile, stride), 24;
  if (depth == 16) return expand_octets<CODE, 2>(words, codes.lanes, lane, levels, tile, stride), 16;
  return expand_octets<CODE, 1>(words, codes.lanes, lane, levels, tile, stride), 8;
}

template <Code CODE>
void expand_codes(const Packed& codes, float* tile) {
  const Levels<CODE> levels;
  const int64_t stride = padded(codes.lanes);
  for (int64_t lane = 0; lane < codes.lanes; lane += kWidth)
    for (int64_t g = 0; g * kGroup < codes.depth; ++g)
      expand_group<CODE>(codes, g, lane, levels, tile + g * kGroup * stride + lane, stride);
}

void expand(const Packed& codes, float* tile) {
  if (codes.code == Code::kNormal2) expand_codes<Code::kNormal2>(codes, tile);
  if (codes.code == Code::kNormal3) expand_codes<Code::kNormal3>(codes, tile);
  if (codes.code == Code::kNormal4) expand_codes<Code::kNormal4>(codes, tile);
  if (codes.code == Code::kUniform) expand_codes<Code::kUniform>(codes, tile);
  if (codes.code == Code::kE4m3) expand_codes<Code::kE4m3>(codes, tile);
}

// Asks for what is not needed yet, as far behind `soon` as what is read is behind `from`.
struct Ahead {
  const char *from, *soon;
  template <int BYTES>
  KVEDGE_MEMBER void ask(const void* read) const {
    repeat<(BYTES + 63) / 64>(KVEDGE_EACH(line) {
      __builtin_prefetch(soon + (static_cast<const char*>(read) - from) + 64 * line, 0, 2);
    });
  }
};
struct NothingAhead {
  template <int BYTES>
  KVEDGE_MEMBER void ask(const void*) const {}
};

// Some rows and vectors of y [ROWS][y_stride] += x . tile [depth][stride] of floats or halves
template <int ROWS, int VECS, class Element, class Next>
KVEDGE_INLINE void tile_lanes(const Element* tile, int64_t stride, int64_t depth, const float* x, int64_t x_stride,
                              float* y, int64_t y_stride, Next next) {
  Sums<ROWS, VECS> sums(y, y_stride);
  for (int64_t i = 0; i < depth; ++i) {
    next.template ask<VECS * kWidth * int(sizeof(Element))>(tile + i * stride);
    Floats level[VECS];
    repeat<VECS>(KVEDGE_EACH(v) { level[v] = load_floats(tile + i * stride + v * kWidth); });
    sums.add(x + i, x_stride, level);
  }
  sums.store(y, y_stride);
}

// What comes after the last whole group, through a tile of one vector.
template <Code CODE>
void add_rest(const Packed& codes, const Rows& x, float* y) {
  const Levels<CODE> levels;
  const int64_t stride = padded(codes.lanes), whole = codes.depth / kGroup;
  float tile[kGroup * kWidth];
  for (int64_t lane = 0; lane < codes.lanes && whole * kGroup < codes.depth; lane += kWidth) {
    const int64_t depth = expand_group<CODE>(codes, whole, lane, levels, tile, kWidth);
    for (int64_t r = 0; r < x.count; ++r)
      tile_lanes<1, 1>(tile, kWidth, depth, x.x + r * x.stride + whole * kGroup, x.stride, y + r * stride + lane, stride,
                       NothingAhead());
  }
}

template <Code CODE>
void packed_product_of(const Packed& codes, const Rows& x, float* y) {
  repeat<kDirectRows>(KVEDGE_EACH(n) {
    if (x.count == n + 1) packed_rows<CODE, n + 1>(codes, x.x, x.stride, y);
  });
  add_rest<CODE>(codes, x, y);
}

void packed_product(const Packed& codes, const Rows& x, float* y) {
  if (codes.code == Code::kNormal2) packed_product_of<Code::kNormal2>(codes, x, y);
  if (codes.code == Code::kNormal3) packed_product_of<Code::kNormal3>(codes, x, y);
  if (codes.code == Code::kNormal4) packed_product_of<Code::kNormal4>(codes, x, y);
  if (codes.code == Code::kUniform) packed_product_of<Code::kUniform>(codes, x, y);
  if (codes.code == Code::kE4m3) packed_product_of<Code::kE4m3>(codes, x, y);
}

template <int ROWS, int VECS, class Element, class Next>
void tile_rows(const Element* tile, int64_t lanes, int64_t depth, const float* x, int64_t x_stride, float* y, Next next) {
  int64_t lane = 0;
  for (; lane + VECS * kWidth <= lanes; lane += VECS * kWidth)
    tile_lanes<ROWS, VECS>(tile + lane, lanes, depth, x, x_stride, y + lane, lanes, next);
  for (; lane < lanes; lane += kWidth) tile_lanes<ROWS, 1>(tile + lane, lanes, depth, x, x_stride, y + lane, lanes, next);
}

template <class Element, class Next>
KVEDGE_INLINE void product_of(const Element* tile, int64_t lanes, int64_t depth, const Rows& x, float* y, Next next) {
  constexpr int kMany = 6, kWide = kRegisters == 32 ? 4 : 2;
  int64_t r = 0;
  const auto left = [&] { return x.x + r * x.stride; };
  for (; r + kMany <= x.count; r += kMany) tile_rows<kMany, kWide>(tile, lanes, depth, left(), x.stride, y + r * lanes, next);
  for (; r + 3 <= x.count; r += 3) tile_rows<3, 4>(tile, lanes, depth, left(), x.stride, y + r * lanes, next);
  for (; r < x.count; ++r) tile_rows<1, 4>(tile, lanes, depth, left(), x.stride, y + r * lanes, next);
}

void product(const float* tile, int64_t lanes, int64_t depth, const Rows& x, float* y) {
  product_of(tile, lanes, depth, x, y, NothingAhead());
}

void transpose(const float* in, int64_t rows, int64_t columns, float* out, int64_t stride) {
  for (int64_t c = 0; c < columns; c += 8)
    for (int64_t r = 0; r < rows; r += 8) transpose_block(in + r * columns + c, columns, out + c * stride + r, stride);
}

template <class Element>
Ahead ahead_of(const Element* tokens, const void* soon) {
  return {reinterpret_cast<const char*>(tokens), static_cast<const char*>(soon)};
}

template <class Element>
void pool_keys(const Element* tokens, int64_t count, int64_t dim, float* out, int64_t stride, const void* soon) {
  const Ahead ahead = ahead_of(tokens, soon);
  for (int64_t d = 0, block = 0; d < dim; d += 8)
    for (int64_t t = 0; t < count; t += 8, ++block) {
      ahead.ask<64 * sizeof(Element)>(tokens + 64 * block);
      transpose_block(tokens + t * dim + d, dim, out + d * stride + t, stride);
    }
}

template <class Element>
void pool_values(const Element* tokens, int64_t count, int64_t dim, const Rows& x, float* y, const void* soon) {
  product_of(tokens, dim, count, x, y, ahead_of(tokens, soon));
}

void round_to_half(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 8) round_8_to_half(x + i, out + i);
}

void read_halves(const uint16_t* halves, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store_floats(out + i, load_floats(halves + i));
  for (; i < count; i += 8) read_8_halves(halves + i, out + i);
}

int32_t read(const int32_t* words, int64_t count) {
  Words sums[4] = {every_word(0), every_word(0), every_word(0), every_word(0)};
  for (int64_t i = 0; i < count; i += 4 * kWidth)
    repeat<4>(KVEDGE_EACH(n) { sums[n] = flip_each(sums[n], load_words(words + i + n * kWidth, kWidth)); });
  int32_t lanes[kWidth], all = 0;
  store_words(lanes, flip_each(flip_each(sums[0], sums[1]), flip_each(sums[2], sums[3])));
  for (int32_t lane : lanes) all ^= lane;
  return all;
}

#ifdef KVEDGE_BYTE_DOTS
const ByteLoops kBytes = {{expand_bytes<false>, expand_bytes<true>},
                          {byte_product<false>, byte_product<true>},
                          {packed_byte_product<false>, packed_byte_product<true>},
                          query_bytes,
                          weight_bytes,
                          weigh_page};
const ManyByteLoops kManyBytes = {bytes_of_queries, bytes_of_weights, {sums_of_bytes<false>, sums_of_bytes<true>},
                                  scores_of_sums, add_sums, take_tiles, give_tiles};
constexpr const ByteLoops* kByteLoops = &kBytes;
constexpr const ManyByteLoops* kManyByteLoops = &kManyBytes;
#else
constexpr const ByteLoops* kByteLoops = nullptr;
constexpr const ManyByteLoops* kManyByteLoops = nullptr;
#endif

}  // namespace

extern const Loops KVEDGE_LOOPS;
const Loops KVEDGE_LOOPS = {
    kByteLoops,    expand,      kDirectRows, packed_product, product, transpose, {pool_keys, pool_values}, {pool_keys, pool_values},
    round_to_half, read_halves, rescale,     rescale_keys,   weigh,   merge,     read,
    {kManyByteLoops, mean_of_queries, rescale_queries, rescale_weights, weigh_queries, merge_queries, butterfly}};

}  // namespace kvedge
