#include "driver.h"

#include <dlfcn.h>

#include "failure.h"

namespace kvedge::launch {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

class Library {
 public:
  Library() : handle_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw Failure(kLibrary, "the CUDA driver", reason());
  }

  template <typename Entry>
  void find(const char* symbol, Entry* entry) const {
    *entry = reinterpret_cast<Entry>(dlsym(handle_, symbol));
    if (*entry == nullptr) throw Failure(kLibrary, symbol, reason());
  }

 private:
  static std::string reason() {
    const char* text = dlerror();
    return text == nullptr ? "none" : text;
  }

  void* handle_;  // never closed: the engine uses it too
};

Driver load_driver() {
  const Library library;
  Driver driver = {};
#define KVEDGE_FIND(member, symbol, parameters) library.find(#symbol, &driver.member);
  KVEDGE_DRIVER_ENTRIES(KVEDGE_FIND)
#undef KVEDGE_FIND
  return driver;
}

}  // namespace

void Driver::require(Result result, const std::string& doing) const {
  if (result == kSuccess) return;
  const char* text = nullptr;
  error_string(result, &text);
  throw Failure(doing, "success", "CUDA error " + std::to_string(result) + (text ? std::string(", ") + text : ""));
}

const Driver& cuda_driver() {
  static const Driver driver = load_driver();
  return driver;
}

Context current_context(const Driver& driver) {
  Context context = nullptr;
  driver.require(driver.current_context(&context), "the current CUDA context");
  return context;
}

}  // namespace kvedge::launch
