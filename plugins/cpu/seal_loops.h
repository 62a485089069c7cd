// The inner loops of seal, compiled once per instruction set from seal_loops.cc and picked at run time.
#ifndef KVEDGE_SEAL_LOOPS_H
#define KVEDGE_SEAL_LOOPS_H

#include <cstdint>

#include "codebook.h"

namespace kvedge {

// What becomes of a rotated block [D][T]: codes [D][T], and by token the sums that scales are made of.
struct Encoded {
  uint8_t* codes;
  float* squares;  // of the block
  float* along;    // block . levels
  float* spread;   // of the levels' squares
  float *largest, *inverse;  // scratch
};

struct SealLoops {
  // The nearest level for every element, each token scaled to norm sqrt(D) or, of 8 bits, to the last level
  void (*encode)(const float* block, int64_t dim, int64_t page, Code code, const Encoded& to);
};

const SealLoops& seal_loops();

}  // namespace kvedge
#endif
