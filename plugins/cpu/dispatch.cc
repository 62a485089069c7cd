// Picks the inner loops for the CPU at hand.
#include <cstdlib>
#include <cstring>

#ifdef KVEDGE_X86_LOOPS
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#if defined(KVEDGE_ARM_LOOPS) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kvedge/paged_attention.h"
#include "linear_loops.h"
#include "loops.h"
#include "seal_loops.h"

namespace kvedge {

#define KVEDGE_DECLARE(table)       \
  extern const Loops table##Loops; \
  extern const LinearLoops table##Linear; \
  extern const SealLoops table##Seal;
KVEDGE_DECLARE(kBaseline)
#ifdef KVEDGE_X86_LOOPS
KVEDGE_DECLARE(kAvx2)
KVEDGE_DECLARE(kAvx512)
KVEDGE_DECLARE(kAvx512Vnni)
KVEDGE_DECLARE(kAvx512Amx)
#endif
#ifdef KVEDGE_ARM_LOOPS
KVEDGE_DECLARE(kNeonDot)
#endif

namespace {

struct InstructionSet {
  const char* name;
  bool (*supported)();
  const Loops* loops;
  const LinearLoops* linear;
  const SealLoops* seal;
};

#ifdef KVEDGE_X86_LOOPS
// Linux gives a process the tiles on request only; GCC 12 does not know how to ask the CPU.
bool has_amx() {
#ifdef __linux__
  constexpr int kRequest = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tiles = (d >> 24 & 1) != 0, integers = (d >> 25 & 1) != 0, floats = (d >> 22 & 1) != 0;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return false;
  const bool rounds = (a >> 5 & 1) != 0;  // AVX512_BF16
  return tiles && integers && floats && rounds && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#endif

#ifdef KVEDGE_ARM_LOOPS
bool has_dot_products() {
#ifdef __linux__
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#else
  return true;  // as every Mac with such a processor
#endif
}
#endif

// From the best to the plainest.
const InstructionSet kSets[] = {
#ifdef KVEDGE_X86_LOOPS
    {"avx512amx",
     [] { return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni") && has_amx(); },
     &kAvx512AmxLoops, &kAvx512AmxLinear, &kAvx512AmxSeal},
    {"avx512vnni", [] { return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni"); },
     &kAvx512VnniLoops, &kAvx512VnniLinear, &kAvx512VnniSeal},
    {"avx512", [] { return __builtin_cpu_supports("x86-64-v4") != 0; }, &kAvx512Loops, &kAvx512Linear,
     &kAvx512Seal},
    {"avx2", [] { return __builtin_cpu_supports("x86-64-v3") != 0; }, &kAvx2Loops, &kAvx2Linear, &kAvx2Seal},
#endif
#ifdef KVEDGE_ARM_LOOPS
    {"neondot", has_dot_products, &kNeonDotLoops, &kNeonDotLinear, &kNeonDotSeal},
#endif
    {"baseline", [] { return true; }, &kBaselineLoops, &kBaselineLinear, &kBaselineSeal},
};

struct Choice {
  const InstructionSet* set;
  const char* error;
};

Choice choose() {
  const InstructionSet* best = kSets;
  while (!best->supported()) ++best;
  const char* wanted = std::getenv("KVEDGE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return {best, nullptr};
  for (const InstructionSet& set : kSets)
    if (std::strcmp(wanted, set.name) == 0 && set.supported()) return {&set, nullptr};
  return {best, "KVEDGE_CPU_ISA; expected baseline, avx2, avx512, avx512vnni, avx512amx or neondot, as far as this CPU and this build have it"};
}

const Choice& choice() {
  static const Choice once = choose();
  return once;
}

}  // namespace

const Loops& loops() { return *choice().set->loops; }

const LinearLoops& linear_loops() { return *choice().set->linear; }

const SealLoops& seal_loops() { return *choice().set->seal; }

const char* loops_error() { return choice().error; }

}  // namespace kvedge

extern "C" const char* kvedge_cpu_isa(void) { return kvedge::choice().set->name; }

extern "C" int kvedge_reads_integers(void) { return kvedge::loops().bytes != nullptr; }

extern "C" int32_t kvedge_read(const int32_t* words, int64_t count) { return kvedge::loops().read(words, count); }
