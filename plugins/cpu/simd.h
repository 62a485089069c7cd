// The few vector operations that loops.cc is written in, for the instruction set that the compiler is set to.
// Included by loops.cc alone: nothing here may be inline with external linkage, or the linker could hand code
// for a newer CPU to an older one.
#ifndef KVEDGE_SIMD_H
#define KVEDGE_SIMD_H

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "codebook.h"
#include "half.h"

#define KVEDGE_INLINE static inline __attribute__((always_inline))
#define KVEDGE_MEMBER inline __attribute__((always_inline))

namespace kvedge {
namespace {

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

// The level of a code of up to 4 bits.
KVEDGE_INLINE float signed_level(int bits, int code) {
  const int top = 1 << (bits - 1);
  const float level = levels_of(bits)[code & (top - 1)];
  return code & top ? -level : level;
}

}  // namespace
}  // namespace kvedge

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif
#endif
