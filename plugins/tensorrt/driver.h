// The entries of the CUDA driver that the plugin calls, found when they are first needed: nothing is linked, so one
// library serves every machine, and loads where there is no GPU.
#ifndef KVEDGE_TENSORRT_DRIVER_H
#define KVEDGE_TENSORRT_DRIVER_H

#include <cuda.h>

#include <string>

namespace kvedge::trt {

struct Driver {
  decltype(&::cuGetErrorString) error_string;
  decltype(&::cuCtxGetCurrent) current_context;
  decltype(&::cuModuleLoadDataEx) load_module;
  decltype(&::cuModuleUnload) unload_module;
  decltype(&::cuModuleGetFunction) find_function;
  decltype(&::cuFuncSetAttribute) set_attribute;
  decltype(&::cuMemAlloc) allocate;
  decltype(&::cuMemFree) free;
  decltype(&::cuMemcpyHtoD) copy_to_device;
  decltype(&::cuMemsetD32Async) fill;
  decltype(&::cuLaunchKernel) launch;

  // Throws Failure, with what was being done, unless the driver was content.
  void require(CUresult result, const std::string& doing) const;
};

// Throws Failure where there is no driver, or an older one.
const Driver& cuda_driver();

}  // namespace kvedge::trt
#endif
