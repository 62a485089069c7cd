// AMX tiles by number, as template arguments: GCC's own intrinsics want the digit itself. Built once per instruction
// set, like simd.h.
#ifndef KVEDGE_AMX_H
#define KVEDGE_AMX_H

#include <immintrin.h>

#include "simd.h"

namespace kvedge {
namespace {

constexpr int kTileRows = 16, kTileBytes = 64;  // of a tile

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  KVEDGE_MEMBER void set(int tile, int of_rows, int of_bytes) {
    rows[tile] = uint8_t(of_rows);
    bytes[tile] = uint16_t(of_bytes);
  }
  // GCC 12's own intrinsic reads eight bytes only, as far as its optimizer knows.
  KVEDGE_MEMBER void load() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
};

template <int TILE>
KVEDGE_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
// Rows are `stride` bytes apart.
template <int TILE>
KVEDGE_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
KVEDGE_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
// SUM += rows . columns, of bytes: either the rows' have a sign, or the columns'.
template <bool SIGNED_ROWS, int SUM, int ROWS, int COLUMNS>
KVEDGE_INLINE void multiply_tiles() {
  if constexpr (SIGNED_ROWS)
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(COLUMNS));
  else
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(COLUMNS));
}

// The same of bfloat16, in floats.
template <int SUM, int ROWS, int COLUMNS>
KVEDGE_INLINE void multiply_brain_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROWS), "i"(COLUMNS));
}

}  // namespace
}  // namespace kvedge
#endif
