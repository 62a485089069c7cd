#include "step_memory.h"

#include "launch/failure.h"

namespace kvedge::ort_cuda {

using launch::Address;
using launch::Failure;
using launch::Stream;

StepMemory::~StepMemory() {
  // What fails here does so because the context is gone, and all that was in it.
  for (const auto& [stream, buffer] : buffers_) driver_.free(buffer.address);
  for (const Address address : kept_) driver_.free(address);
}

Address StepMemory::at_least(Stream stream, size_t bytes) {
  Buffer& buffer = buffers_[stream];
  auto status = launch::kNotCapturing;
  driver_.require(driver_.capture_status(stream, &status), "the stream, whether it is captured");
  const bool captured = status != launch::kNotCapturing;
  if (bytes > buffer.bytes && captured) {
    throw Failure("workspace", "a step of this size before one is captured as a CUDA graph",
                  std::to_string(bytes) + " bytes needed, " + std::to_string(buffer.bytes) + " there");
  }
  if (bytes > buffer.bytes) grow(stream, bytes, &buffer);
  buffer.captured |= captured;
  return buffer.address;
}

void StepMemory::grow(Stream stream, size_t bytes, Buffer* buffer) {
  const Buffer old = *buffer;
  *buffer = {};
  if (old.captured) {
    kept_.push_back(old.address);
  } else if (old.address != 0) {
    driver_.require(driver_.synchronize(stream), "workspace, waiting for the steps before");
    driver_.require(driver_.free(old.address), "workspace, release");
  }
  driver_.require(driver_.allocate(&buffer->address, bytes),
                  "workspace, allocation of " + std::to_string(bytes) + " bytes");
  buffer->bytes = bytes;
}

}  // namespace kvedge::ort_cuda
