// The few vector operations that the candidates are written in, once per instruction set.
#ifndef KVEDGE_BENCH_SIMD_H
#define KVEDGE_BENCH_SIMD_H

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "kernels.h"

#define KVEDGE_INLINE inline __attribute__((always_inline))

namespace kvedge::bench::KVEDGE_ISA {

// body(0) ... body(N - 1), each index a constant.
template <int... I, class Body>
KVEDGE_INLINE void repeat_each(std::integer_sequence<int, I...>, Body body) {
  (body(std::integral_constant<int, I>()), ...);
}
template <int N, class Body>
KVEDGE_INLINE void repeat(Body body) {
  repeat_each(std::make_integer_sequence<int, N>(), body);
}
#define KVEDGE_EACH(name) [&](auto name) __attribute__((always_inline))

// Eight bytes or four of a stored page, whatever their alignment.
KVEDGE_INLINE int64_t load64(const uint8_t* at) {
  int64_t x;
  std::memcpy(&x, at, 8);
  return x;
}
KVEDGE_INLINE int32_t load32(const void* at) {
  int32_t x;
  std::memcpy(&x, at, 4);
  return x;
}

// Tables of any kind in the bytes that the bench keeps for them.
template <class Table, class Level>
void prepare(const Level* levels, Tables& tables) {
  static_assert(sizeof(Table) <= sizeof tables.bytes, "room for the tables");
  new (tables.bytes) Table(levels);
}
template <class Table>
KVEDGE_INLINE const Table& table_in(const Tables& tables) {
  return *reinterpret_cast<const Table*>(tables.bytes);
}

}  // namespace kvedge::bench::KVEDGE_ISA

#ifdef __AVX512VBMI__
#include "simd_avx512.h"
#else
#include "simd_avx2.h"
#endif
#endif
