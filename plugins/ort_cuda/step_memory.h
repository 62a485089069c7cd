// The workspace of steps on a device: one buffer per stream, since what a stream is given runs in order.
#ifndef KVEDGE_ORT_CUDA_STEP_MEMORY_H
#define KVEDGE_ORT_CUDA_STEP_MEMORY_H

#include <map>
#include <mutex>
#include <vector>

#include "launch/driver.h"

namespace kvedge::ort_cuda {

class StepMemory {
 public:
  explicit StepMemory(const launch::Driver& driver) : driver_(driver) {}
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  // Calls launch(address) with room for so many bytes, while no one else gives that stream steps. Nothing is allocated
  // unless the step is the largest so far.
  template <class Launch>
  void with(launch::Stream stream, size_t bytes, Launch launch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    launch(at_least(stream, bytes));
  }

 private:
  struct Buffer {
    launch::Address address = 0;
    size_t bytes = 0;
    bool captured = false;  // a CUDA graph may write to it whenever it is replayed
  };

  launch::Address at_least(launch::Stream stream, size_t bytes);
  void grow(launch::Stream stream, size_t bytes, Buffer* buffer);

  const launch::Driver& driver_;
  std::mutex mutex_;
  std::map<launch::Stream, Buffer> buffers_;
  std::vector<launch::Address> kept_;  // of graphs
};

}  // namespace kvedge::ort_cuda
#endif
