// exp in the vectors of simd.h; like it, for the files that are built once per instruction set.
#ifndef KVEDGE_EXP_H
#define KVEDGE_EXP_H

#include "simd.h"

namespace kvedge {
namespace {

// exp over x <= 0, but for 2e-7 of it where weights matter: range reduction by ln 2, then 1 + r + r^2 q(r) with the q
// of degree 3 that is best on +-ln 2 / 2 (1e-7). Below e^-80 it is 0: such weights vanish in the sum, and their
// products would be denormal, which is slow. NaN stays NaN.
KVEDGE_INLINE Floats fast_exp(Floats exponent) {
  const auto fma = [](Floats a, Floats b, float c) { return multiply_add(a, b, every_float(c)); };
  const Floats x = larger(every_float(-80.0f), exponent);
  // Adding 1.5 * 2^23 rounds to the nearest integer.
  const Floats shifted = add(multiply(x, every_float(1.44269504f)), every_float(12582912.0f));
  const Floats n = add(shifted, every_float(-12582912.0f));
  const Floats r = multiply_add(n, every_float(-0.693147181f), x);
  Floats p = fma(every_float(8.31479411e-3f), r, 4.18902856e-2f);
  p = fma(p, r, 1.66670883e-1f);
  p = fma(p, r, 4.99992309e-1f);
  p = add(multiply_add(p, multiply(r, r), r), every_float(1.0f));
  const Words power = left<23>(add_words(bits_of(shifted), 127 - 0x4b400000));
  return zero_below(-80.0f, exponent, multiply(p, floats_of(power)));
}

}  // namespace
}  // namespace kvedge
#endif
