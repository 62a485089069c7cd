// One PagedAttention node on ONNX Runtime's CUDA provider: its layer, and one step of it on the provider's stream.
#ifndef KVEDGE_ORT_CUDA_ATTENTION_H
#define KVEDGE_ORT_CUDA_ATTENTION_H

#include "kernels_folder.h"
#include "launch/device.h"
#include "launch/failure.h"
#include "ort/ort_op.h"
#include "step_memory.h"

namespace kvedge::ort_cuda {

// What layers share whose kernels are in one folder.
class Shared {
 public:
  explicit Shared(std::string folder) : kernels(std::move(folder)) {}

  std::shared_ptr<StepMemory> memory(const launch::Driver& driver, launch::Context context);

  KernelsFolder kernels;

 private:
  std::mutex mutex_;
  std::map<launch::Context, std::weak_ptr<StepMemory>> memories_;
};

class Attention {
 public:
  static constexpr size_t kInputs = 1, kOutputs = 1;  // each stands for all of them
  static const char* name() { return launch::kName; }
  static ort::Port input(size_t) { return {ort::kUndefined, ort::kVariadic}; }
  static ort::Port output(size_t) { return {ort::kUndefined, ort::kVariadic}; }

  // Loads kernels if the thread has a CUDA context; else the first step does. `shared` must outlive it.
  Attention(ort::Api api, const ort::KernelInfo* info, Shared* shared);

  void compute(ort::KernelContext* context) const;
  const ort::Api& api() const { return api_; }

 private:
  // A layer on a device.
  struct Ready {
    launch::Context context;
    launch::Layer layer;
    std::shared_ptr<const launch::Device> device;
    std::shared_ptr<StepMemory> memory;
  };

  std::shared_ptr<const Ready> ready() const;
  std::shared_ptr<const Ready> load(const launch::Driver& driver, launch::Context context) const;

  ort::Api api_;
  Shared* shared_;
  std::string node_, inputs_;
  launch::Attributes attributes_ = {};
  int64_t form_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Ready> ready_;
};

}  // namespace kvedge::ort_cuda
#endif
