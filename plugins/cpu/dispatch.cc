// Picks the inner loops for the CPU at hand.
#include "loops.h"

namespace kvedge {

extern const Loops kBaselineLoops;
#ifdef KVEDGE_X86_LOOPS
extern const Loops kAvx2Loops, kAvx512Loops;
#endif

const Loops& loops() {
#ifdef KVEDGE_X86_LOOPS
  static const Loops& best = __builtin_cpu_supports("x86-64-v4")   ? kAvx512Loops
                             : __builtin_cpu_supports("x86-64-v3") ? kAvx2Loops
                                                                   : kBaselineLoops;
  return best;
#else
  return kBaselineLoops;
#endif
}

}  // namespace kvedge
