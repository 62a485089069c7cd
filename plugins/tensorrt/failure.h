// What is wrong with a plugin's fields, tensors or kernels: who, what was expected, what there was.
#ifndef KVEDGE_TENSORRT_FAILURE_H
#define KVEDGE_TENSORRT_FAILURE_H

#include <stdexcept>
#include <string>

namespace kvedge::trt {

constexpr const char* kName = "PagedAttention";

struct Failure : std::runtime_error {
  Failure(const std::string& what, const std::string& expected, const std::string& got)
      : std::runtime_error(std::string(kName) + ": " + what + ": expected " + expected + ", got " + got) {}
};

}  // namespace kvedge::trt
#endif
