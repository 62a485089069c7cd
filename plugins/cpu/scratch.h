// Scratch that a thread keeps: it grows to the largest step and stays, so that nothing is allocated in the long run.
#ifndef KVEDGE_CPU_SCRATCH_H
#define KVEDGE_CPU_SCRATCH_H

#include <cstdint>
#include <vector>

namespace kvedge {

inline float* grown(std::vector<float>& kept, int64_t floats) {
  if (int64_t(kept.size()) < floats) kept.resize(floats);
  return kept.data();
}

}  // namespace kvedge
#endif
