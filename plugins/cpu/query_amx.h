// Integer products of many queries on AMX tiles. Part of loops.cc; the same integers as in vectors.
#ifndef KVEDGE_QUERY_AMX_H
#define KVEDGE_QUERY_AMX_H

#include "amx.h"
#include "loops.h"

namespace kvedge {
namespace {

// Tiles 0 to 3 are sums, 4 rows and 5 words of 64 bytes of depth.
void take_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.set(tile, kTileRows, kTileBytes);
  config.load();
}

void give_tiles() { _tile_release(); }

// Sums of 16 rows and some vectors of lanes.
template <bool SIGNED_ROWS, int VECS>
KVEDGE_INLINE void sums_of_tiles(const ByteMatrix& rows, const int32_t* words, int64_t lanes, int64_t row, int32_t* sums) {
  const uint8_t* from = rows.x + row * rows.stride;
  repeat<VECS>(KVEDGE_EACH(v) { zero_tile<v>(); });
  for (int64_t i = 0; i < rows.depth; i += kTileBytes, words += kTileBytes / 4 * lanes) {
    load_tile<4>(from + i, rows.stride);
    repeat<VECS>(KVEDGE_EACH(v) {
      load_tile<5>(words + v * kWidth, lanes * sizeof(int32_t));
      multiply_tiles<SIGNED_ROWS, v, 4, 5>();
    });
  }
  repeat<VECS>(KVEDGE_EACH(v) { store_tile<v>(sums + row * lanes + v * kWidth, lanes * sizeof(int32_t)); });
}

template <bool SIGNED_ROWS>
void sums_of_bytes(const ByteMatrix& rows, const int32_t* words, int64_t lanes, int32_t* sums) {
  for (int64_t row = 0; row < rows.count; row += kTileRows) {
    int64_t lane = 0;
    for (; lane + 4 * kWidth <= lanes; lane += 4 * kWidth)
      sums_of_tiles<SIGNED_ROWS, 4>(rows, words + lane, lanes, row, sums + lane);
    for (; lane < lanes; lane += kWidth) sums_of_tiles<SIGNED_ROWS, 1>(rows, words + lane, lanes, row, sums + lane);
  }
}

}  // namespace
}  // namespace kvedge
#endif
