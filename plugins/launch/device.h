// The kernels of a layer on a device.
#ifndef KVEDGE_LAUNCH_DEVICE_H
#define KVEDGE_LAUNCH_DEVICE_H

#include <map>
#include <memory>

#include "driver.h"
#include "plan.h"

namespace kvedge::launch {

class Device {
 public:
  // Loads kernels and the rotation's matrix into a context. Throws Failure where it takes none of them.
  Device(const Driver& driver, Context context, const Layer& layer);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool serves(Context context, const Bundle& bundle) const;

  // Runs the plan; `tensors` hold the pointers of inputs and outputs.
  void run(const Plan& plan, const Values& tensors, Address workspace, int32_t batch, Stream stream) const;

 private:
  void load(const Kernel& kernel);
  void upload(std::string_view dct);
  void launch(const Launch& one, Values* values, Stream stream) const;
  void check(const Values& tensors) const;
  void release() noexcept;

  const Driver& driver_;
  Context context_;
  std::shared_ptr<const std::string> bytes_;
  Address alignment_;
  std::vector<Module> modules_;
  std::map<std::string, Function> functions_;
  Address dct_ = 0;
};

// The one of the current context: layers with equal kernels share it.
std::shared_ptr<const Device> device_of(const Layer& layer);

}  // namespace kvedge::launch
#endif
