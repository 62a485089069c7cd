// Keys by token: D (bit planes) and exact pages. A vector runs along channels, so every score is a sum over
// lanes. Also exact values, which are by token anyway.
#ifndef KVEDGE_BENCH_BY_TOKEN_H
#define KVEDGE_BENCH_BY_TOKEN_H

#include "planes.h"

namespace kvedge::bench::KVEDGE_ISA {

// Four tokens of ROWS queries; add(token, sums) adds what one token has.
template <int ROWS, class Vector, class Add, class Store>
KVEDGE_INLINE void score_tokens(int tokens, Vector zero, Add add, Store store) {
  for (int t = 0; t < tokens; t += 4) {
    Vector sum[ROWS][4];
    repeat<ROWS * 4>(KVEDGE_EACH(n) { sum[n / 4][n % 4] = zero; });
    add(t, sum);
    repeat<ROWS>(KVEDGE_EACH(row) { store(row, t, sums_of(sum[row][0], sum[row][1], sum[row][2], sum[row][3])); });
  }
}

template <int BITS, int ROWS>
void row_floats(const uint8_t* page, int tokens, int dim, const Tables& tables, const float* x, float* y) {
  const auto& table = table_in<FloatTable<BITS>>(tables);
  const auto add = [&](int t, Floats (&sum)[ROWS][4]) __attribute__((always_inline)) {
    for (int d = 0; d < dim; d += 4 * kLanes)
      repeat<4>(KVEDGE_EACH(n) {
        PlaneFloats<BITS> block;
        block.load(page, dim, tokens, t + n, d);
        repeat<4>(KVEDGE_EACH(v) {
          const Floats level = block.template level<0, v>(table);
          repeat<ROWS>(KVEDGE_EACH(row) {
            sum[row][n] = multiply_add(level, load_floats(x + row * dim + d + v * kLanes), sum[row][n]);
          });
        });
      });
  };
  const auto store = [&](int row, int t, __m128 s) { _mm_storeu_ps(y + row * tokens + t, s); };
  score_tokens<ROWS>(tokens, no_floats(), add, store);
}

template <int BITS>
void row_float_product(const uint8_t* page, int tokens, int dim, const Tables& tables, int rows, const float* x,
                       float* y) {
  if (rows == 1) row_floats<BITS, 1>(page, tokens, dim, tables, x, y);
  if (rows == 3) row_floats<BITS, 3>(page, tokens, dim, tables, x, y);
  if (rows == 7) row_floats<BITS, 7>(page, tokens, dim, tables, x, y);
}

template <int BITS, int ROWS>
void row_integers(const uint8_t* page, int tokens, int dim, const Tables& tables, const int8_t* x,
                  const int32_t* start, int32_t* y) {
  const auto& table = table_in<ByteTable<BITS>>(tables);
  const auto add = [&](int t, Words (&sum)[ROWS][4]) __attribute__((always_inline)) {
    for (int d = 0; d < dim; d += kSpread)
      repeat<4>(KVEDGE_EACH(n) {
        const Words level = table.at(spread<BITS>(page + ((t + n) * dim + d) / 8, int64_t(tokens) * dim / 8));
        repeat<ROWS>(KVEDGE_EACH(row) { sum[row][n] = dot4(sum[row][n], level, load_words(x + row * dim + d)); });
      });
  };
  const auto store = [&](int row, int t, __m128i s) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + row * tokens + t), _mm_add_epi32(s, _mm_set1_epi32(start[row])));
  };
  score_tokens<ROWS>(tokens, every_word(0), add, store);
}

template <int BITS>
void row_integer_product(const uint8_t* page, int tokens, int dim, const Tables& tables, int rows, const int8_t* x,
                         const int32_t* start, int32_t* y) {
  if (rows == 1) row_integers<BITS, 1>(page, tokens, dim, tables, x, start, y);
  if (rows == 3) row_integers<BITS, 3>(page, tokens, dim, tables, x, start, y);
  if (rows == 7) row_integers<BITS, 7>(page, tokens, dim, tables, x, start, y);
}

KVEDGE_INLINE Floats load_exact(const float* at) { return load_floats(at); }
KVEDGE_INLINE Floats load_exact(const uint16_t* at) { return load_halves(at); }

template <class T, int ROWS>
void exact_keys(const T* keys, int tokens, int dim, const float* x, float* y) {
  const auto add = [&](int t, Floats (&sum)[ROWS][4]) __attribute__((always_inline)) {
    for (int d = 0; d < dim; d += kLanes)
      repeat<4>(KVEDGE_EACH(n) {
        const Floats key = load_exact(keys + (t + n) * dim + d);
        repeat<ROWS>(KVEDGE_EACH(row) {
          sum[row][n] = multiply_add(key, load_floats(x + row * dim + d), sum[row][n]);
        });
      });
  };
  const auto store = [&](int row, int t, __m128 s) { _mm_storeu_ps(y + row * tokens + t, s); };
  score_tokens<ROWS>(tokens, no_floats(), add, store);
}

template <class T>
void exact_key_product(const uint8_t* page, int tokens, int dim, const Tables&, int rows, const float* x, float* y) {
  const T* keys = reinterpret_cast<const T*>(page);
  for (int row = 0; row < rows;) {
    // Seven rows of four sums each do not fit sixteen registers.
    const int now = rows - row == 7 && kWide ? 7 : rows - row >= 3 ? 3 : 1;
    if (now == 7) exact_keys<T, 7>(keys, tokens, dim, x + row * dim, y + row * tokens);
    if (now == 3) exact_keys<T, 3>(keys, tokens, dim, x + row * dim, y + row * tokens);
    if (now == 1) exact_keys<T, 1>(keys, tokens, dim, x + row * dim, y + row * tokens);
    row += now;
  }
}

// Exact values as blocks of one token, so that the loops of packed pages serve them too.
template <class T>
struct ExactBlock {
  struct FloatLevels {
    explicit FloatLevels(const float*) {}
  };
  static constexpr int kBits = 0, kDepth = 1, kVecs = 1;
  Floats values;

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int, int i, int lane) {
    values = load_exact(reinterpret_cast<const T*>(page) + i * lanes + lane);
  }
  template <int K, int V>
  KVEDGE_INLINE Floats level(const FloatLevels&) const { return values; }
};

// tile [dim][tokens] of keys [tokens][dim]
template <class T>
void transpose_keys(const uint8_t* page, int tokens, int dim, const Tables&, float* tile) {
  const T* keys = reinterpret_cast<const T*>(page);
  float line[8][kLanes];
  for (int t = 0; t < tokens; t += 8)
    for (int d = 0; d < dim; d += kLanes) {
      for (int n = 0; n < 8; ++n) store_floats(line[n], load_exact(keys + (t + n) * dim + d));
      for (int c = 0; c < kLanes; ++c)
        for (int n = 0; n < 8; ++n) tile[(d + c) * tokens + t + n] = line[n][c];
    }
}

}  // namespace kvedge::bench::KVEDGE_ISA
#endif
