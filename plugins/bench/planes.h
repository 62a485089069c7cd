// Candidates of bit planes: A and B (groups of four interleaved).
//
// A block is the part of a page that is unpacked at once: kDepth elements of kVecs vectors of lanes. Float
// blocks give levels, byte blocks vectors of words that hold four levels of one lane each.
#ifndef KVEDGE_BENCH_PLANES_H
#define KVEDGE_BENCH_PLANES_H

#include "simd.h"

#ifdef __AVX512VBMI__
#include "planes_avx512.h"
#else
#include "planes_avx2.h"
#endif

namespace kvedge::bench::KVEDGE_ISA {

template <int BITS>
struct PlaneFloats {
  static constexpr int kBits = BITS, kDepth = 1, kVecs = 4;
  using FloatLevels = FloatTable<BITS>;
  Words codes;

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int depth, int i, int lane) {
    codes = spread_strided<BITS>(page + (i * lanes + lane) / 8, int64_t(lanes) * depth / 8);
  }
  template <int K, int V>
  KVEDGE_INLINE Floats level(const FloatTable<BITS>& table) const { return table.template at<8 * V>(codes); }
};

template <int BITS>
struct PlaneBytes {
  static constexpr int kBits = BITS, kDepth = 8, kVecs = 4;
  using ByteLevels = ByteTable<BITS>;
  Words codes[2][4];

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int depth, int i, int lane) {
    const int64_t plane_bytes = int64_t(lanes) * depth / 8;
    interleave<BITS>(page + (i * lanes + lane) / 8, lanes / 8, plane_bytes, codes[0]);
    interleave<BITS>(page + ((i + 4) * lanes + lane) / 8, lanes / 8, plane_bytes, codes[1]);
  }
  template <int G, int V>
  KVEDGE_INLINE Words bytes(const ByteTable<BITS>& table) const { return table.at(codes[G][V]); }
  static KVEDGE_INLINE void order(Words* sums) { order_interleaved(sums); }
};

template <int BITS>
struct QuadFloats {
  static constexpr int kBits = BITS, kDepth = 4, kVecs = 1;
  using FloatLevels = FloatTable<BITS>;
  Words codes;

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int depth, int i, int lane) {
    codes = spread<BITS>(page + (i / 4 * lanes + lane) / 2, int64_t(lanes) * depth / 8);
  }
  template <int K, int V>
  KVEDGE_INLINE Floats level(const FloatTable<BITS>& table) const { return table.template at<8 * K>(codes); }
};

template <int BITS>
struct QuadBytes {
  static constexpr int kBits = BITS, kDepth = 8, kVecs = 1;
  using ByteLevels = ByteTable<BITS>;
  Words codes[2];

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int depth, int i, int lane) {
    const int64_t plane_bytes = int64_t(lanes) * depth / 8;
    codes[0] = spread<BITS>(page + (i / 4 * lanes + lane) / 2, plane_bytes);
    codes[1] = spread<BITS>(page + ((i / 4 + 1) * lanes + lane) / 2, plane_bytes);
  }
  template <int G, int V>
  KVEDGE_INLINE Words bytes(const ByteTable<BITS>& table) const { return table.at(codes[G]); }
  static KVEDGE_INLINE void order(Words*) {}
};

// A the plain way: eight levels from one byte of each plane, by a tree of selections, in plain code.
typedef float Vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Int8 __attribute__((vector_size(32), aligned(4), may_alias));

template <int BITS>
KVEDGE_INLINE void select_byte(const uint8_t* planes, int64_t plane_bytes, const float* levels, float* out) {
  const Int8 lane = {1, 2, 4, 8, 16, 32, 64, 128};
  Int8 set[BITS];
  for (int bit = 0; bit < BITS; ++bit) set[bit] = ((Int8{} + int32_t(planes[bit * plane_bytes])) & lane) != 0;
  Vec8 choice[1 << (BITS - 1)];
  for (int i = 0; i < 1 << (BITS - 1); ++i) choice[i] = Vec8{} + levels[i];
  for (int bit = 0; bit < BITS - 1; ++bit)
    for (int i = 0; i < 1 << (BITS - 2 - bit); ++i) choice[i] = set[bit] ? choice[2 * i + 1] : choice[2 * i];
  *reinterpret_cast<Vec8*>(out) = set[BITS - 1] ? -choice[0] : choice[0];
}

struct PlainLevels {
  float level[16];
  explicit PlainLevels(const float* levels) { std::memcpy(level, levels, sizeof level); }
};

template <int BITS>
void expand_by_selection(const uint8_t* page, int lanes, int depth, const Tables& tables, float* tile) {
  const float* levels = table_in<PlainLevels>(tables).level;
  for (int n = 0; n < lanes * depth / 8; ++n)
    select_byte<BITS>(page + n, lanes * depth / 8, levels, tile + 8 * n);
}

}  // namespace kvedge::bench::KVEDGE_ISA
#endif
