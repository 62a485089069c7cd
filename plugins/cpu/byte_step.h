// What rounding to bytes takes: one step for some floats. Built once per instruction set, like simd.h.
#ifndef KVEDGE_BYTE_STEP_H
#define KVEDGE_BYTE_STEP_H

#include "simd.h"

namespace kvedge {
namespace {

// The largest of some floats, lane by lane; poison is 0, but NaN where one was infinite or NaN.
struct Extent {
  Floats high = no_floats(), poison = no_floats();

  KVEDGE_MEMBER void add(Floats x) {
    high = larger(x, high);
    poison = multiply_add(x, no_floats(), poison);
  }
  KVEDGE_MEMBER void add_signed(Floats x) {
    high = larger(larger(x, multiply(x, every_float(-1.0f))), high);
    poison = multiply_add(x, no_floats(), poison);
  }
};

// What one step of bytes up to `most` stands for over all lanes, and its inverse; the step is NaN where there is poison.
struct ByteStep {
  float step, inverse;
  KVEDGE_MEMBER ByteStep(const Extent& of, float most) {
    const float largest = largest_of(of.high);
    inverse = largest > 0.0f ? most / largest : 0.0f;
    step = largest / most + sum_of(of.poison);
  }
};

// The same lane by lane.
struct ByteSteps {
  Floats step, inverse;
  KVEDGE_MEMBER ByteSteps(const Extent& of, float most) {
    const Floats all = every_float(most);
    inverse = zero_below(0x1p-149f, of.high, divide(all, of.high));
    step = add(divide(of.high, all), of.poison);
  }
};

// Of x [count], whole vectors, with a sign: up to 127.
KVEDGE_INLINE ByteStep signed_step(const float* x, int64_t count) {
  Extent extent;
  for (int64_t i = 0; i < count; i += kWidth) extent.add_signed(load_floats(x + i));
  return ByteStep(extent, 127.0f);
}

}  // namespace
}  // namespace kvedge
#endif
