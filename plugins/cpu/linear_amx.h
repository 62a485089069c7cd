// Products of many rows on AMX tiles: inputs and weights are rounded to bfloat16, sums are floats and run over the
// inputs in order. Part of linear_loops.cc; twin of linear_of_many in plugins/reference/linear.py.
//
// A tile of inputs is [16 rows][32], a tile of weights [16 pairs of inputs][16 outputs][2], unpacked once for all rows.
#ifndef KVEDGE_LINEAR_AMX_H
#define KVEDGE_LINEAR_AMX_H

#include "amx.h"

namespace kvedge {
namespace {

constexpr int64_t kDepthBlocks = 24;           // whose weights are unpacked at a time: 48 KiB of two tiles
constexpr int64_t kUnpacked = kBlock * kTile;  // weights of a block, or inputs of a group of rows
static_assert(kTile == kTileRows && 2 * kBlock == kTileBytes, "a block is a tile");

void round_to_brain(const float* x, int64_t blocks, uint16_t* out) {
  for (int64_t b = 0; b < blocks; ++b, x += kBlock, out += kUnpacked)
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(load_floats(x + kWidth), load_floats(x)));
}

// Lane by lane: a below b.
KVEDGE_INLINE __m512i brain_pairs(Floats a, Floats b) {
  const __m512i places = _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                          _mm512_slli_epi32(_mm512_set_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21,
                                                                             20, 19, 18, 17, 16), 16));
  return _mm512_permutexvar_epi16(places, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

// to [2][16 outputs][2], of four inputs
KVEDGE_INLINE void unpack_four(Words codes, Floats scale, Floats least, uint16_t* to) {
  Floats weight[4];
  repeat<4>(KVEDGE_EACH(i) {
    weight[i] = multiply_add(to_floats(both(right<8 * i>(codes), 0xffu)), scale, least);
  });
  _mm512_storeu_si512(to, brain_pairs(weight[0], weight[1]));
  _mm512_storeu_si512(to + 2 * kTile, brain_pairs(weight[2], weight[3]));
}

// to [16 pairs][16 outputs][2]
template <int BITS>
KVEDGE_INLINE void unpack_block(const uint8_t* block, uint16_t* to) {
  constexpr int kPerChunk = 8 / BITS;  // codes of a byte
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(block + block_code_bytes(BITS));
  const Floats scale = load_floats(halves), least = load_floats(halves + kTile);
  repeat<kFours / kPerChunk>(KVEDGE_EACH(chunk) {
    const Words bytes = load_words(reinterpret_cast<const int32_t*>(block) + chunk * kTile, kWidth);
    repeat<kPerChunk>(KVEDGE_EACH(part) {
      const Words codes = BITS == 8 ? bytes : both(right<4 * part>(bytes), 0x0f0f0f0fu);
      unpack_four(codes, scale, least, to + (chunk * kPerChunk + part) * 4 * kTile);
    });
  });
}

void unpack_blocks(const uint8_t* blocks, int bits, int64_t count, uint16_t* to) {
  for (int64_t b = 0; b < count; ++b, to += kUnpacked)
    bits == 4 ? unpack_block<4>(blocks + b * block_bytes(4), to) : unpack_block<8>(blocks + b * block_bytes(8), to);
}

// 16 rows of one tile's products, of which `count` are there; loaded as a whole from elsewhere where they are fewer.
struct Products {
  float* y;
  int64_t stride, count;

  // Well before they are stored: they lie far apart, and most likely in no near cache.
  KVEDGE_MEMBER void fetch() const {
    for (int64_t r = 0; r < count; ++r) __builtin_prefetch(y + r * stride, 1);
  }
  template <int TILE>
  KVEDGE_MEMBER void load() const {
    alignas(64) float whole[kTileRows * kTile];
    if (count == kTileRows) return load_tile<TILE>(y, stride * sizeof(float));
    for (int64_t r = 0; r < count; ++r) store_floats(whole + r * kTile, load_floats(y + r * stride));
    load_tile<TILE>(whole, kTileBytes);
  }
  template <int TILE>
  KVEDGE_MEMBER void store() const {
    alignas(64) float whole[kTileRows * kTile];
    if (count == kTileRows) return store_tile<TILE>(y, stride * sizeof(float));
    store_tile<TILE>(whole, kTileBytes);
    for (int64_t r = 0; r < count; ++r) store_floats(y + r * stride, load_floats(whole + r * kTile));
  }
};

// Some blocks of the weights of a target or two.
struct Depth {
  const uint16_t* weights;  // [targets][kDepthBlocks][16 pairs][16 outputs][2]
  int64_t first, count;
};

// GROUPS times 16 rows, TARGETS times 16 outputs. Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
template <int GROUPS, int TARGETS>
void add_products(const Target* targets, const BrainRows& x, const Depth& depth, int64_t row) {
  const auto products = [&](int group, int target) {
    const int64_t first = row + group * kTileRows, rest = x.count - first;
    const Target& to = targets[target];
    return Products{to.y + first * to.stride, to.stride, rest < kTileRows ? rest : kTileRows};
  };
  repeat<GROUPS * TARGETS>(KVEDGE_EACH(n) {
    if (depth.first == 0)
      load_tile<n>(targets[n % TARGETS].start, 0);
    else
      products(n / TARGETS, n % TARGETS).template load<n>();
  });
  repeat<GROUPS * TARGETS>(KVEDGE_EACH(n) { products(n / TARGETS, n % TARGETS).fetch(); });
  const uint16_t* from = x.codes + row * x.blocks * kBlock + depth.first * kUnpacked;
  const uint16_t* weights = depth.weights;
  for (int64_t b = 0; b < depth.count; ++b, from += kUnpacked, weights += kUnpacked) {
    repeat<GROUPS>(KVEDGE_EACH(group) { load_tile<4 + group>(from + group * x.blocks * kUnpacked, kTileBytes); });
    repeat<TARGETS>(KVEDGE_EACH(t) { load_tile<6 + t>(weights + t * kDepthBlocks * kUnpacked, kTileBytes); });
    repeat<GROUPS * TARGETS>(KVEDGE_EACH(n) { multiply_brain_tiles<n, 4 + n / TARGETS, 6 + n % TARGETS>(); });
  }
  repeat<GROUPS * TARGETS>(KVEDGE_EACH(n) { products(n / TARGETS, n % TARGETS).template store<n>(); });
}

template <int TARGETS>
void product_of_targets(const Target* targets, int bits, const BrainRows& x) {
  alignas(64) uint16_t weights[TARGETS * kDepthBlocks * kUnpacked];
  for (int64_t first = 0; first < x.blocks; first += kDepthBlocks) {
    const int64_t count = x.blocks - first < kDepthBlocks ? x.blocks - first : kDepthBlocks;
    for (int t = 0; t < TARGETS; ++t)
      unpack_blocks(targets[t].tile + first * block_bytes(bits), bits, count, weights + t * kDepthBlocks * kUnpacked);
    const Depth depth = {weights, first, count};
    int64_t row = 0;
    for (; row + kTileRows < x.count; row += 2 * kTileRows) add_products<2, TARGETS>(targets, x, depth, row);
    if (row < x.count) add_products<1, TARGETS>(targets, x, depth, row);
  }
}

void product_of_many(const Target* targets, int count, int bits, const BrainRows& x) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, kTileRows, kTileBytes);
  config.load();
  count == 2 ? product_of_targets<2>(targets, bits, x) : product_of_targets<1>(targets, bits, x);
  _tile_release();
}

}  // namespace
}  // namespace kvedge
#endif
