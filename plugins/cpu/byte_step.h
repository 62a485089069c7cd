// What rounding to bytes takes: one step for some floats. Built once per instruction set, like simd.h.
#ifndef KVEDGE_BYTE_STEP_H
#define KVEDGE_BYTE_STEP_H

#include "simd.h"

namespace kvedge {
namespace {

// What one step of bytes up to `most` stands for, and its inverse; the step is NaN where `poison` is.
struct ByteStep {
  float step, inverse;
  KVEDGE_MEMBER ByteStep(Floats high, Floats poison, float most) {
    const float largest = largest_of(high);
    inverse = largest > 0.0f ? most / largest : 0.0f;
    step = largest / most + sum_of(poison);
  }
};

// 0 added up, but NaN where x is infinite or NaN.
KVEDGE_INLINE Floats poisoned(Floats poison, Floats x) { return multiply_add(x, no_floats(), poison); }

// Of x [count], whole vectors, with a sign: up to 127.
KVEDGE_INLINE ByteStep signed_step(const float* x, int64_t count) {
  Floats high = no_floats(), poison = no_floats();
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats one = load_floats(x + i);
    high = larger(larger(one, multiply(one, every_float(-1.0f))), high);
    poison = poisoned(poison, one);
  }
  return ByteStep(high, poison, 127.0f);
}

}  // namespace
}  // namespace kvedge
#endif
