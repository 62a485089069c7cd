// Picks the inner loops for the CPU at hand.
#include <cstdlib>
#include <cstring>

#include "kvedge/paged_attention.h"
#include "loops.h"

namespace kvedge {

extern const Loops kBaselineLoops;
#ifdef KVEDGE_X86_LOOPS
extern const Loops kAvx2Loops, kAvx512Loops;
#endif

namespace {

struct Choice {
  const Loops* loops;
  const char* error;
};

const Loops& best() {
#ifdef KVEDGE_X86_LOOPS
  if (__builtin_cpu_supports("x86-64-v4")) return kAvx512Loops;
  if (__builtin_cpu_supports("x86-64-v3")) return kAvx2Loops;
#endif
  return kBaselineLoops;
}

Choice choose() {
  const char* wanted = std::getenv("KVEDGE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return {&best(), nullptr};
  if (std::strcmp(wanted, kBaselineLoops.name) == 0) return {&kBaselineLoops, nullptr};
#ifdef KVEDGE_X86_LOOPS
  if (std::strcmp(wanted, kAvx2Loops.name) == 0 && __builtin_cpu_supports("x86-64-v3")) return {&kAvx2Loops, nullptr};
  if (std::strcmp(wanted, kAvx512Loops.name) == 0 && __builtin_cpu_supports("x86-64-v4")) return {&kAvx512Loops, nullptr};
  return {&best(), "KVEDGE_CPU_ISA; expected baseline, avx2 or avx512, as far as this CPU has it"};
#else
  return {&best(), "KVEDGE_CPU_ISA; expected baseline: this build has nothing else"};
#endif
}

const Choice& choice() {
  static const Choice once = choose();
  return once;
}

}  // namespace

const Loops& loops() { return *choice().loops; }

const char* loops_error() { return choice().error; }

}  // namespace kvedge

extern "C" const char* kvedge_cpu_isa(void) { return kvedge::loops().name; }
