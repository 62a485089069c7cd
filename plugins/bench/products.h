// The loops of attention over blocks of a candidate: products in fp32 and in integers, and the unpacked tile.
#ifndef KVEDGE_BENCH_PRODUCTS_H
#define KVEDGE_BENCH_PRODUCTS_H

#include "simd.h"

namespace kvedge::bench::KVEDGE_ISA {

// Vectors of sums per row that fit the registers beside levels and tables.
template <int ROWS>
constexpr int kVecs = kWide ? (ROWS <= 3 ? 4 : 2) : (ROWS == 1 ? 4 : ROWS <= 3 ? 2 : 1);

// How many blocks stand side by side.
template <class Block, int ROWS>
constexpr int kSide = kVecs<ROWS> > Block::kVecs ? kVecs<ROWS> / Block::kVecs : 1;

// y [ROWS][lanes] of some lanes = x [ROWS][depth] . levels [depth][lanes]
template <class Block, int ROWS>
KVEDGE_INLINE void float_lanes(const uint8_t* page, int lanes, int depth, const typename Block::FloatLevels& table,
                               const float* x, float* y, int lane) {
  constexpr int kBlocks = kSide<Block, ROWS>, kAll = kBlocks * Block::kVecs;
  Floats sum[ROWS][kAll];
  repeat<ROWS * kAll>(KVEDGE_EACH(n) { sum[n / kAll][n % kAll] = no_floats(); });
  for (int i = 0; i < depth; i += Block::kDepth) {
    Block block[kBlocks];
    repeat<kBlocks>(KVEDGE_EACH(s) { block[s].load(page, lanes, depth, i, lane + s * Block::kVecs * kLanes); });
    repeat<Block::kDepth>(KVEDGE_EACH(k) {
      repeat<kAll>(KVEDGE_EACH(v) {
        const Floats level = block[v / Block::kVecs].template level<k, v % Block::kVecs>(table);
        repeat<ROWS>(KVEDGE_EACH(row) {
          sum[row][v] = multiply_add(every_float(x[row * depth + i + k]), level, sum[row][v]);
        });
      });
    });
  }
  repeat<ROWS * kAll>(KVEDGE_EACH(n) {
    store_floats(y + (n / kAll) * lanes + lane + n % kAll * kLanes, sum[n / kAll][n % kAll]);
  });
}

template <class Block, int ROWS>
void float_rows(const uint8_t* page, int lanes, int depth, const Tables& tables, const float* x, float* y) {
  const auto& table = table_in<typename Block::FloatLevels>(tables);
  for (int lane = 0; lane < lanes; lane += kSide<Block, ROWS> * Block::kVecs * kLanes)
    float_lanes<Block, ROWS>(page, lanes, depth, table, x, y, lane);
}

template <class Block>
void float_product(const uint8_t* page, int lanes, int depth, const Tables& tables, int rows, const float* x,
                   float* y) {
  if (rows == 1) float_rows<Block, 1>(page, lanes, depth, tables, x, y);
  if (rows == 3) float_rows<Block, 3>(page, lanes, depth, tables, x, y);
  if (rows == 7) float_rows<Block, 7>(page, lanes, depth, tables, x, y);
}

template <class Block>
void expand(const uint8_t* page, int lanes, int depth, const Tables& tables, float* tile) {
  const auto& table = table_in<typename Block::FloatLevels>(tables);
  for (int lane = 0; lane < lanes; lane += Block::kVecs * kLanes)
    for (int i = 0; i < depth; i += Block::kDepth) {
      Block block;
      block.load(page, lanes, depth, i, lane);
      repeat<Block::kDepth * Block::kVecs>(KVEDGE_EACH(n) {
        constexpr int k = n / Block::kVecs, v = n % Block::kVecs;
        store_floats(tile + (i + k) * lanes + lane + v * kLanes, block.template level<k, v>(table));
      });
    }
}

// start [ROWS]: what a biased level adds too much, taken off once per query.
template <class Block, bool KEYS, int ROWS>
KVEDGE_INLINE void integer_lanes(const uint8_t* page, int lanes, int depth, const typename Block::ByteLevels& table,
                                 const int8_t* x, const int32_t* start, int32_t* y, int lane) {
  constexpr int kBlocks = kSide<Block, ROWS>, kAll = kBlocks * Block::kVecs;
  Words sum[ROWS][kAll];
  repeat<ROWS * kAll>(KVEDGE_EACH(n) { sum[n / kAll][n % kAll] = every_word(start[n / kAll]); });
  for (int i = 0; i < depth; i += Block::kDepth) {
    Block block[kBlocks];
    repeat<kBlocks>(KVEDGE_EACH(s) { block[s].load(page, lanes, depth, i, lane + s * Block::kVecs * kLanes); });
    repeat<Block::kDepth / 8>(KVEDGE_EACH(o) {
      repeat<kAll>(KVEDGE_EACH(v) {
        const Block& from = block[v / Block::kVecs];
        const Words a = from.template bytes<2 * o, v % Block::kVecs>(table);
        const Words b = from.template bytes<2 * o + 1, v % Block::kVecs>(table);
        repeat<ROWS>(KVEDGE_EACH(row) {
          const int8_t* at = x + row * depth + i + 8 * o;
          sum[row][v] = dot8<KEYS>(sum[row][v], a, b, every_word(load32(at)), every_word(load32(at + 4)));
        });
      });
    });
  }
  repeat<ROWS * kBlocks>(KVEDGE_EACH(n) { Block::order(sum[n / kBlocks] + n % kBlocks * Block::kVecs); });
  repeat<ROWS * kAll>(KVEDGE_EACH(n) {
    store_words(y + (n / kAll) * lanes + lane + n % kAll * kLanes, sum[n / kAll][n % kAll]);
  });
}

template <class Block, bool KEYS, int ROWS>
void integer_rows(const uint8_t* page, int lanes, int depth, const Tables& tables, const int8_t* x,
                  const int32_t* start, int32_t* y) {
  const auto& table = table_in<typename Block::ByteLevels>(tables);
  for (int lane = 0; lane < lanes; lane += kSide<Block, ROWS> * Block::kVecs * kLanes)
    integer_lanes<Block, KEYS, ROWS>(page, lanes, depth, table, x, start, y, lane);
}

template <class Block, bool KEYS>
void integer_product(const uint8_t* page, int lanes, int depth, const Tables& tables, int rows, const int8_t* x,
                     const int32_t* start, int32_t* y) {
  if (rows == 1) integer_rows<Block, KEYS, 1>(page, lanes, depth, tables, x, start, y);
  if (rows == 3) integer_rows<Block, KEYS, 3>(page, lanes, depth, tables, x, start, y);
  if (rows == 7) integer_rows<Block, KEYS, 7>(page, lanes, depth, tables, x, start, y);
}

// y [rows][lanes] = x [rows][depth] . tile [depth][lanes], ROWS rows at a time.
template <int ROWS, int VECS>
void tile_rows(const float* tile, int lanes, int depth, const float* x, float* y) {
  for (int lane = 0; lane < lanes; lane += VECS * kLanes) {
    Floats sum[ROWS][VECS];
    repeat<ROWS * VECS>(KVEDGE_EACH(n) { sum[n / VECS][n % VECS] = no_floats(); });
    for (int i = 0; i < depth; ++i) {
      Floats level[VECS];
      repeat<VECS>(KVEDGE_EACH(v) { level[v] = load_floats(tile + i * lanes + lane + v * kLanes); });
      repeat<ROWS * VECS>(KVEDGE_EACH(n) {
        const Floats factor = every_float(x[n / VECS * depth + i]);
        sum[n / VECS][n % VECS] = multiply_add(factor, level[n % VECS], sum[n / VECS][n % VECS]);
      });
    }
    repeat<ROWS * VECS>(KVEDGE_EACH(n) {
      store_floats(y + n / VECS * lanes + lane + n % VECS * kLanes, sum[n / VECS][n % VECS]);
    });
  }
}

inline void tile_product(const float* tile, int lanes, int depth, int rows, const float* x, float* y) {
  int row = 0;
  for (; row + 6 <= rows; row += 6) tile_rows<6, kWide ? 4 : 2>(tile, lanes, depth, x + row * depth, y + row * lanes);
  for (; row + 3 <= rows; row += 3) tile_rows<3, 4>(tile, lanes, depth, x + row * depth, y + row * lanes);
  for (; row < rows; ++row) tile_rows<1, 4>(tile, lanes, depth, x + row * depth, y + row * lanes);
}

}  // namespace kvedge::bench::KVEDGE_ISA
#endif
