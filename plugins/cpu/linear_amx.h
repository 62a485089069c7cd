// Products of groups of rows on AMX tiles. Part of linear_loops.cc; sums come out to the same bits as in vectors.
//
// A tile of inputs is [rows][32], a tile of weights [8][16 outputs][4 inputs], as both are stored (4-bit codes are
// unpacked once for all rows); their product of one block is 16 x 16 integers, which scales turn into floats.
#ifndef KVEDGE_LINEAR_AMX_H
#define KVEDGE_LINEAR_AMX_H

#include <immintrin.h>

namespace kvedge {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 and 1 are sums, 2 and 3 inputs, 4 and 5 weights.
KVEDGE_INLINE void configure(int rows) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) {
    config.bytes[tile] = tile == 2 || tile == 3 ? kBlock : 4 * kTile;
    config.rows[tile] = tile < 4 ? uint8_t(rows) : uint8_t(kFours);
  }
  _tile_loadconfig(&config);
}

// to [blocks][8][64]
void unpack_nibbles(const uint8_t* tile, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; ++b, tile += block_bytes(4), to += kFours * 4 * kTile) {
    for (int chunk = 0; chunk < kFours / 2; ++chunk) {
      const __m512i bytes = _mm512_loadu_si512(tile + chunk * 64);
      _mm512_store_si512(to + chunk * 128, both(bytes, 0x0f0f0f0fu));
      _mm512_store_si512(to + chunk * 128 + 64, both(right<4>(bytes), 0x0f0f0f0fu));
    }
  }
}

// Integer sums of one block; EVEN chooses the tiles, so that one block's products run beside another's scales.
template <bool EVEN>
KVEDGE_INLINE void multiply_block(const int8_t* x, const uint8_t* weights, int32_t* sums) {
  if constexpr (EVEN) {
    _tile_zero(0);
    _tile_loadd(2, x, kBlock);
    _tile_loadd(4, weights, 4 * kTile);
    _tile_dpbsud(0, 2, 4);
    _tile_stored(0, sums, 4 * kTile);
  } else {
    _tile_zero(1);
    _tile_loadd(3, x, kBlock);
    _tile_loadd(5, weights, 4 * kTile);
    _tile_dpbsud(1, 3, 5);
    _tile_stored(1, sums, 4 * kTile);
  }
}

template <int ROWS>
KVEDGE_INLINE void add_block(const int32_t* sums, const uint8_t* block, int bits, const float* x_scale,
                             const float* x_sum, Floats (&y)[ROWS]) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(block + block_code_bytes(bits));
  const Floats scale = load_halves(halves), least = load_halves(halves + kTile);
  repeat<ROWS>(KVEDGE_EACH(r) {
    const Floats by = every_float(x_scale[r]), total = every_float(x_sum[r]);
    y[r] = multiply_add(multiply(to_floats(load_words(sums + r * kTile, kWidth)), by), scale, y[r]);
    y[r] = multiply_add(least, total, y[r]);
  });
}

// Blocks of a tile of weights as AMX takes them, and their scales where they are stored.
struct Segment {
  const uint8_t* tile;     // first block as stored
  const uint8_t* weights;  // first block [8][64]
  int64_t stride;          // bytes from one of those to the next
  int64_t first, last;     // blocks of the inputs
};

// One group of ROWS rows, of which x.count are there: codes [blocks][ROWS][32], scales and sums [blocks][ROWS]. Sums
// begin with what y holds.
template <int ROWS>
void amx_group(const Segment& s, int bits, const QuantizedRows& x, float* y, int64_t stride) {
  alignas(64) int32_t sums[2][ROWS * kTile];
  Floats sum[ROWS];
  repeat<ROWS>(KVEDGE_EACH(r) { sum[r] = r < x.count ? load_floats(y + r * stride) : no_floats(); });
  const auto multiply = [&](int64_t b) __attribute__((always_inline)) {
    const int8_t* codes = x.codes + b * ROWS * kBlock;
    const uint8_t* weights = s.weights + (b - s.first) * s.stride;
    b % 2 == 0 ? multiply_block<true>(codes, weights, sums[0]) : multiply_block<false>(codes, weights, sums[1]);
  };
  multiply(s.first);
  for (int64_t b = s.first; b < s.last; ++b) {
    if (b + 1 < s.last) multiply(b + 1);
    add_block<ROWS>(sums[b % 2], s.tile + (b - s.first) * block_bytes(bits), bits, x.scale + b * ROWS, x.sum + b * ROWS,
                    sum);
  }
  repeat<ROWS>(KVEDGE_EACH(r) {
    if (r < x.count) store_floats(y + r * stride, sum[r]);
  });
}

// All rows but a last single one; returns the rows that are done.
int64_t amx_product(const uint8_t* tile, int bits, const QuantizedRows& x, const float* start, float* y, int64_t stride) {
  const int64_t rest = x.count % kGroupRows, count = rest < kLeastRows ? x.count - rest : x.count;
  if (count == 0) return 0;
  constexpr int64_t kBlocks = 64;  // whose codes are unpacked at a time: 32 KiB
  alignas(64) uint8_t unpacked[kBlocks * kFours * 4 * kTile];
  const Floats begin = load_floats(start);
  for (int64_t row = 0; row < count; ++row) store_floats(y + row * stride, begin);
  configure(kGroupRows);
  for (int64_t first = 0; first < x.blocks; first += kBlocks) {
    const int64_t last = x.blocks - first < kBlocks ? x.blocks : first + kBlocks;
    const uint8_t* stored = tile + first * block_bytes(bits);
    Segment segment = {stored, stored, block_bytes(bits), first, last};
    if (bits == 4) {
      unpack_nibbles(stored, last - first, unpacked);
      segment.weights = unpacked;
      segment.stride = kFours * 4 * kTile;
    }
    for (int64_t row = 0; row < count; row += kGroupRows) {
      const int64_t rows = count - row < kGroupRows ? count - row : kGroupRows;
      const QuantizedRows group = {x.codes + row * x.blocks * kBlock, x.scale + row * x.blocks, x.sum + row * x.blocks,
                                   rows, x.blocks};
      amx_group<kGroupRows>(segment, bits, group, y + row * stride, stride);
    }
  }
  _tile_release();
  return count;
}

}  // namespace
}  // namespace kvedge
#endif
