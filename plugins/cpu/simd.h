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
KVEDGE_INLINE void repeat_each(std::integer_sequence<int, I...>, [[maybe_unused]] Body body) {
  (body(std::integral_constant<int, I>()), ...);
}
template <int N, class Body>
KVEDGE_INLINE void repeat(Body body) {
  repeat_each(std::make_integer_sequence<int, N>(), body);
}
#define KVEDGE_EACH(name) [&](auto name) __attribute__((always_inline))

// The level whose code, of up to 4 bits, is in the low bits of an index. SIGN_FIRST: the sign is the lowest bit, the
// magnitude above it.
template <int BITS, bool SIGN_FIRST>
KVEDGE_INLINE float level_of_low_bits(int index) {
  constexpr int kMagnitudes = 1 << (BITS - 1);
  const int magnitude = (SIGN_FIRST ? index >> 1 : index) & (kMagnitudes - 1);
  const float level = levels_of(BITS)[magnitude];
  return index & (SIGN_FIRST ? 1 : kMagnitudes) ? -level : level;
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
