#include "driver.h"

#include <dlfcn.h>

#include "failure.h"

namespace kvedge::trt {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// cuda.h renames entries to their newest version: so does this, or another signature would be called.
#define KVEDGE_TEXT(name) #name
#define KVEDGE_SYMBOL(name) KVEDGE_TEXT(name)

class Library {
 public:
  Library() : handle_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw Failure(kLibrary, "the CUDA driver", reason());
  }

  template <typename Entry>
  void find(const char* name, Entry* entry) const {
    *entry = reinterpret_cast<Entry>(dlsym(handle_, name));
    if (*entry == nullptr) throw Failure(kLibrary, name, reason());
  }

 private:
  static std::string reason() {
    const char* text = dlerror();
    return text == nullptr ? "none" : text;
  }

  void* handle_;  // never closed: TensorRT uses it too
};

Driver load_driver() {
  const Library library;
  Driver driver = {};
  library.find(KVEDGE_SYMBOL(cuGetErrorString), &driver.error_string);
  library.find(KVEDGE_SYMBOL(cuCtxGetCurrent), &driver.current_context);
  library.find(KVEDGE_SYMBOL(cuModuleLoadDataEx), &driver.load_module);
  library.find(KVEDGE_SYMBOL(cuModuleUnload), &driver.unload_module);
  library.find(KVEDGE_SYMBOL(cuModuleGetFunction), &driver.find_function);
  library.find(KVEDGE_SYMBOL(cuFuncSetAttribute), &driver.set_attribute);
  library.find(KVEDGE_SYMBOL(cuMemAlloc), &driver.allocate);
  library.find(KVEDGE_SYMBOL(cuMemFree), &driver.free);
  library.find(KVEDGE_SYMBOL(cuMemcpyHtoD), &driver.copy_to_device);
  library.find(KVEDGE_SYMBOL(cuMemsetD32Async), &driver.fill);
  library.find(KVEDGE_SYMBOL(cuLaunchKernel), &driver.launch);
  return driver;
}

}  // namespace

void Driver::require(CUresult result, const std::string& doing) const {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  error_string(result, &text);
  throw Failure(doing, "success", "CUDA error " + std::to_string(result) + (text ? std::string(", ") + text : ""));
}

const Driver& cuda_driver() {
  static const Driver driver = load_driver();
  return driver;
}

}  // namespace kvedge::trt
