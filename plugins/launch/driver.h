// The CUDA driver, found when it is first needed: nothing is linked, so one library serves every machine, and loads
// where there is no GPU.
#ifndef KVEDGE_LAUNCH_DRIVER_H
#define KVEDGE_LAUNCH_DRIVER_H

#include <string>

#include "driver_api.h"

namespace kvedge::launch {

struct Driver {
#define KVEDGE_MEMBER(member, symbol, parameters) Result(*member) parameters;
  KVEDGE_DRIVER_ENTRIES(KVEDGE_MEMBER)
#undef KVEDGE_MEMBER

  // Throws Failure, with what was being done, unless the driver was content.
  void require(Result result, const std::string& doing) const;
};

// Throws Failure where there is no driver, or an older one.
const Driver& cuda_driver();

// The context of the calling thread; null where it has none.
Context current_context(const Driver& driver);

}  // namespace kvedge::launch
#endif
