// What one step launches, on which grids, and the workspace it takes: the twin of attention.py, kernels.py and
// splits.py in kvedge/plugins/cuda. A test compares both, step by step.
#ifndef KVEDGE_LAUNCH_PLAN_H
#define KVEDGE_LAUNCH_PLAN_H

#include <vector>

#include "layer.h"

namespace kvedge::launch {

struct StepSizes {
  int32_t batch, new_tokens, hot_slots, packed_slots;
};

struct Region {
  Argument argument;
  size_t offset, bytes;
};

struct Workspace {
  std::vector<Region> regions;
  size_t bytes = 0;
};

struct Launch {
  const Kernel* kernel;
  unsigned x, y, z;
};

struct Plan {
  std::vector<Launch> launches;  // in order
  Workspace workspace;
  Values numbers;  // arguments that are no pointers

  Plan(const Layer& layer, const StepSizes& step);
};

// Enough for every step of at most these sizes.
size_t most_workspace(const Layer& layer, const StepSizes& most);

}  // namespace kvedge::launch
#endif
