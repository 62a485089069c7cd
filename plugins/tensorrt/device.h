// The kernels of a layer on a device.
#ifndef KVEDGE_TENSORRT_DEVICE_H
#define KVEDGE_TENSORRT_DEVICE_H

#include <map>
#include <memory>

#include "driver.h"
#include "plan.h"

namespace kvedge::trt {

class Device {
 public:
  // Loads kernels and the rotation's matrix into a context. Throws Failure where it takes none of them.
  Device(const Driver& driver, CUcontext context, const Layer& layer);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool serves(CUcontext context, const Bundle& bundle) const;

  // Runs the plan; `tensors` hold the pointers of inputs and outputs.
  void run(const Plan& plan, const Values& tensors, void* workspace, int32_t batch, CUstream stream) const;

 private:
  void load(const Kernel& kernel);
  void upload(std::string_view dct);
  void launch(const Launch& one, Values* values, CUstream stream) const;
  void release() noexcept;

  const Driver& driver_;
  CUcontext context_;
  std::shared_ptr<const std::string> bytes_;
  std::vector<CUmodule> modules_;
  std::map<std::string, CUfunction> functions_;
  CUdeviceptr dct_ = 0;
};

// The one of the current context: layers with equal kernels share it.
std::shared_ptr<const Device> device_of(const Layer& layer);

}  // namespace kvedge::trt
#endif
