// What is wrong with a node's attributes, tensors or kernels: who, what was expected, what there was.
#ifndef KVEDGE_LAUNCH_FAILURE_H
#define KVEDGE_LAUNCH_FAILURE_H

#include <stdexcept>
#include <string>

namespace kvedge::launch {

constexpr const char* kName = "PagedAttention";

struct Failure : std::runtime_error {
  Failure(const std::string& what, const std::string& expected, const std::string& got)
      : std::runtime_error(std::string(kName) + ": " + what + ": expected " + expected + ", got " + got) {}
};

}  // namespace kvedge::launch
#endif
