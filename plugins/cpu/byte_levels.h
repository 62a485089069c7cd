// Levels of codes as bytes, four elements of a lane in a word, and their products with other bytes.
// Needs dot_bytes of two full bytes (KVEDGE_BYTE_DOTS). Part of loops.cc.
//
// Keys are read as level + 128, without a sign, and meet queries, which have one; values keep their sign and meet
// weights, which have none.
#ifndef KVEDGE_BYTE_LEVELS_H
#define KVEDGE_BYTE_LEVELS_H

#include "byte_step.h"
#include "loops.h"
#include "words.h"

namespace kvedge {
namespace {

constexpr int kBias = 128;

// The code in a nibble of an octet's word, as Group::nibbles leaves it: a pair and its sign in 3 bits, where they are.
template <int BITS>
constexpr int code_in_nibble(int octet, int nibble) {
  if (BITS == 4) return nibble;
  const int odd = octet % 2, pair = nibble >> 2 * odd & 3;
  return BITS == 2 ? pair : pair | (nibble >> (2 * (1 - odd) + octet / 2) & 1) << 2;
}

// Levels by nibble, one table for each place that codes have in their nibbles.
template <int BITS, bool KEYS>
struct NibbleBytes {
  static constexpr int kPlaces = BITS == 2 ? 2 : BITS == 3 ? 4 : 1;
  int8_t bytes[kPlaces][16];

  constexpr NibbleBytes() : bytes() {
    for (int octet = 0; octet < kPlaces; ++octet) {
      for (int nibble = 0; nibble < 16; ++nibble) {
        const int code = code_in_nibble<BITS>(octet, nibble), half = 1 << (BITS - 1);
        const int level = byte_levels_of(BITS)[code & (half - 1)];
        bytes[octet][nibble] = int8_t((code & half ? -level : level) + (KEYS ? kBias : 0));
      }
    }
  }
};

template <int BITS, bool KEYS>
struct ByteLevels {
  static constexpr int kPlaces = NibbleBytes<BITS, KEYS>::kPlaces;
  static constexpr NibbleBytes<BITS, KEYS> kTables{};
  ByteTable place[kPlaces];

  KVEDGE_MEMBER ByteLevels() {
    repeat<kPlaces>(KVEDGE_EACH(octet) { place[octet] = ByteTable(kTables.bytes[octet]); });
  }

  // Elements 4 * FOUR ... 4 * FOUR + 3 of a group.
  template <int FOUR, int OCTETS>
  KVEDGE_MEMBER Words at(const Group<BITS, OCTETS>& group) const {
    constexpr int kNumber = FOUR / 2;
    return place[kNumber % kPlaces].at(right<4 * (FOUR % 2)>(group.template nibbles<kNumber>()));
  }
};
template <bool KEYS>
struct ByteLevels<8, KEYS> {
  template <int FOUR, int OCTETS>
  KVEDGE_MEMBER Words at(const Group<8, OCTETS>& group) const {
    return KEYS ? flip(group.w[FOUR], 0x80808080u) : group.w[FOUR];
  }
};

template <bool KEYS>
KVEDGE_INLINE Words dot_levels(Words sum, Words levels, Words x) {
  return KEYS ? dot_bytes<8>(sum, levels, x) : dot_bytes<8>(sum, x, levels);
}

// y [row][lane ...] += factor [row] * sums, of VECS vectors.
template <int ROWS, int VECS>
struct ByteSums {
  Words sum[ROWS][VECS];

  KVEDGE_MEMBER ByteSums(const int32_t* start) {
    repeat<ROWS * VECS>(KVEDGE_EACH(n) { sum[n / VECS][n % VECS] = every_word(start[n / VECS]); });
  }
  template <bool KEYS>
  KVEDGE_MEMBER void add(const uint8_t* x, int64_t stride, const Words (&levels)[VECS]) {
    repeat<ROWS>(KVEDGE_EACH(r) {
      int32_t four;
      std::memcpy(&four, x + r * stride, 4);
      const Words bytes = every_word(four);
      repeat<VECS>(KVEDGE_EACH(v) { sum[r][v] = dot_levels<KEYS>(sum[r][v], levels[v], bytes); });
    });
  }
  KVEDGE_MEMBER void add_to(const float* factor, float* y, int64_t stride) const {
    repeat<ROWS>(KVEDGE_EACH(r) {
      const Floats scale = every_float(factor[r]);
      repeat<VECS>(KVEDGE_EACH(v) {
        float* at = y + r * stride + v * kWidth;
        store_floats(at, multiply_add(to_floats(sum[r][v]), scale, load_floats(at)));
      });
    });
  }
};

// Whole groups where they lie. Sums begin at x.start.
template <int BITS, bool KEYS, int ROWS, int VECS>
KVEDGE_INLINE void packed_byte_lanes(const Packed& codes, const ByteLevels<BITS, KEYS>& table, const ByteRows& x,
                                     int64_t lane, float* y) {
  using Block = Group<BITS, kGroup / kOctet>;
  ByteSums<ROWS, VECS> sums(x.start);
  const auto add = [&](const uint8_t* from, const auto&... block) __attribute__((always_inline)) {
    repeat<kGroup / 4>(KVEDGE_EACH(four) {
      const Words levels[] = {table.template at<four>(block)...};
      sums.template add<KEYS>(from + 4 * four, x.stride, levels);
    });
  };
  const int32_t* words = codes.words;
  for (int64_t i = 0; i + kGroup <= codes.depth; i += kGroup, words += BITS * codes.lanes) {
    const auto block = [&](int v) __attribute__((always_inline)) { return Block(words, codes.lanes, lane + v * kWidth); };
    if constexpr (VECS == 1) add(x.x + i, block(0));
    if constexpr (VECS == 2) add(x.x + i, block(0), block(1));
    if constexpr (VECS == 4) add(x.x + i, block(0), block(1), block(2), block(3));
  }
  sums.add_to(x.factor, y + lane, padded(codes.lanes));
}

template <int BITS, bool KEYS, int ROWS>
void packed_byte_rows(const Packed& codes, const ByteRows& x, float* y) {
  const ByteLevels<BITS, KEYS> table;
  constexpr int kVecs = ROWS == 1 ? 4 : 2;  // what fits the registers beside tables and words
  int64_t lane = 0;
  for (; lane + kVecs * kWidth <= codes.lanes; lane += kVecs * kWidth)
    packed_byte_lanes<BITS, KEYS, ROWS, kVecs>(codes, table, x, lane, y);
  for (; lane < codes.lanes; lane += kWidth) packed_byte_lanes<BITS, KEYS, ROWS, 1>(codes, table, x, lane, y);
}

template <int BITS, bool KEYS, int OCTETS>
KVEDGE_INLINE void expand_byte_octets(const Packed& codes, const int32_t* words, int64_t lane,
                                      const ByteLevels<BITS, KEYS>& table, int32_t* tile) {
  const Group<BITS, OCTETS> group(words, codes.lanes, lane);
  repeat<2 * OCTETS>(KVEDGE_EACH(four) { store_words(tile + four * padded(codes.lanes), table.template at<four>(group)); });
}

// tile [depth / 4][padded(lanes)]
template <int BITS, bool KEYS>
void expand_bytes_of(const Packed& codes, int32_t* tile) {
  const ByteLevels<BITS, KEYS> table;
  for (int64_t g = 0; g * kGroup < codes.depth; ++g) {
    const int32_t* words = codes.words + g * BITS * codes.lanes;
    const int64_t depth = codes.depth - g * kGroup;
    for (int64_t lane = 0; lane < codes.lanes; lane += kWidth) {
      int32_t* to = tile + g * (kGroup / 4) * padded(codes.lanes) + lane;
      if (depth >= 32) expand_byte_octets<BITS, KEYS, 4>(codes, words, lane, table, to);
      if (depth == 24) expand_byte_octets<BITS, KEYS, 3>(codes, words, lane, table, to);
      if (depth == 16) expand_byte_octets<BITS, KEYS, 2>(codes, words, lane, table, to);
      if (depth == 8) expand_byte_octets<BITS, KEYS, 1>(codes, words, lane, table, to);
    }
  }
}

template <bool KEYS>
void expand_bytes(const Packed& codes, int32_t* tile) {
  if (codes.code == Code::kNormal2) expand_bytes_of<2, KEYS>(codes, tile);
  if (codes.code == Code::kNormal3) expand_bytes_of<3, KEYS>(codes, tile);
  if (codes.code == Code::kNormal4) expand_bytes_of<4, KEYS>(codes, tile);
  if (codes.code == Code::kUniform) expand_bytes_of<8, KEYS>(codes, tile);
}

template <bool KEYS, int ROWS, int VECS>
KVEDGE_INLINE void tile_byte_lanes(const int32_t* tile, int64_t lanes, int64_t depth, const ByteRows& x, int64_t row,
                                   float* y) {
  ByteSums<ROWS, VECS> sums(x.start + row);
  for (int64_t four = 0; four < depth / 4; ++four) {
    Words levels[VECS];
    repeat<VECS>(KVEDGE_EACH(v) { levels[v] = load_words(tile + four * lanes + v * kWidth, kWidth); });
    sums.template add<KEYS>(x.x + row * x.stride + 4 * four, x.stride, levels);
  }
  sums.add_to(x.factor + row, y + row * lanes, lanes);
}

template <bool KEYS, int ROWS>
void tile_byte_rows(const int32_t* tile, int64_t lanes, int64_t depth, const ByteRows& x, int64_t row, float* y) {
  int64_t lane = 0;
  for (; lane + 4 * kWidth <= lanes; lane += 4 * kWidth)
    tile_byte_lanes<KEYS, ROWS, 4>(tile + lane, lanes, depth, x, row, y + lane);
  for (; lane < lanes; lane += kWidth) tile_byte_lanes<KEYS, ROWS, 1>(tile + lane, lanes, depth, x, row, y + lane);
}

template <bool KEYS>
void byte_product(const int32_t* tile, int64_t lanes, int64_t depth, const ByteRows& x, float* y) {
  int64_t row = 0;
  for (; row + 6 <= x.count; row += 6) tile_byte_rows<KEYS, 6>(tile, lanes, depth, x, row, y);
  for (; row + 3 <= x.count; row += 3) tile_byte_rows<KEYS, 3>(tile, lanes, depth, x, row, y);
  for (; row < x.count; ++row) tile_byte_rows<KEYS, 1>(tile, lanes, depth, x, row, y);
}

template <int BITS, bool KEYS>
void packed_byte_product_of(const Packed& codes, const ByteRows& x, float* y) {
  repeat<kDirectRows>(KVEDGE_EACH(n) {
    if (x.count == n + 1) packed_byte_rows<BITS, KEYS, n + 1>(codes, x, y);
  });
}

template <bool KEYS>
void packed_byte_product(const Packed& codes, const ByteRows& x, float* y) {
  if (codes.code == Code::kNormal2) packed_byte_product_of<2, KEYS>(codes, x, y);
  if (codes.code == Code::kNormal3) packed_byte_product_of<3, KEYS>(codes, x, y);
  if (codes.code == Code::kNormal4) packed_byte_product_of<4, KEYS>(codes, x, y);
  if (codes.code == Code::kUniform) packed_byte_product_of<8, KEYS>(codes, x, y);
}

void query_bytes(const float* x, int64_t count, uint8_t* bytes, float* step, int32_t* start) {
  const ByteStep by = signed_step(x, count);
  Words sums = every_word(0);
  for (int64_t i = 0; i < count; i += kWidth) {
    const Words codes = nearest(multiply(load_floats(x + i), every_float(by.inverse)));
    store_low_bytes(bytes + i, codes);
    sums = add_each(sums, codes);
  }
  int32_t lanes[kWidth];
  store_words(lanes, sums);
  uint32_t total = 0;  // codes of what is no number may wrap around
  for (int32_t lane : lanes) total += uint32_t(lane);
  *step = by.step;
  *start = int32_t(0u - kBias * total);
}

void weight_bytes(const Lines& weights, const float* scale, float unit, uint8_t* bytes, float* steps) {
  for (int64_t r = 0; r < weights.count; ++r, bytes += weights.lanes) {
    float* line = weights.x + r * weights.lanes;
    Extent extent;
    for (int64_t i = 0; i < weights.lanes; i += kWidth) {
      const Floats scaled = multiply(load_floats(line + i), load_floats(scale + i));
      store_floats(line + i, scaled);
      extent.add(scaled);
    }
    const ByteStep by(extent, 255.0f);
    for (int64_t i = 0; i < weights.lanes; i += kWidth)
      store_low_bytes(bytes + i, nearest(multiply(load_floats(line + i), every_float(by.inverse))));
    steps[r] = by.step * unit;
  }
}

}  // namespace
}  // namespace kvedge
#endif
