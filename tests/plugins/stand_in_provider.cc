// Stands between the true ONNX Runtime and libkvedge_cuda.so where there is no CUDA provider: has the CPU provider run
// the operator, on tensors in the host's memory, and gives it a stream. All else is ONNX Runtime's.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "ort/ort_api.h"

namespace {

using namespace kvedge::ort;

constexpr int kEntries = kGetTensorElementTypeAndShapeDataReference + 1;

const Api* true_api = nullptr;
std::vector<void*> table;
const ApiBase* true_base = nullptr;
decltype(CustomOp::create_kernel_v2) create_kernel = nullptr;

Status* stream(const KernelContext*, void** stream) {
  *stream = reinterpret_cast<void*>(uintptr_t{0x57});
  return nullptr;
}

Status* add_op(CustomOpDomain* domain, const CustomOp* op) {
  auto* changed = const_cast<CustomOp*>(op);
  create_kernel = op->create_kernel_v2;
  changed->execution_provider = [](const CustomOp*) -> const char* { return nullptr; };
  changed->create_kernel_v2 = [](const CustomOp* of, const void*, const KernelInfo* info, void** kernel) {
    return create_kernel(of, table.data(), info, kernel);
  };
  return true_api->add_op(domain, changed);
}

const void* stand_in_table(uint32_t version) {
  auto* const* entries = static_cast<void* const*>(true_base->get_api(version));
  true_api = new Api(entries);
  table.assign(entries, entries + kEntries);
  table[kKernelContextGetGPUComputeStream] = reinterpret_cast<void*>(&stream);
  table[kCustomOpDomainAdd] = reinterpret_cast<void*>(&add_op);
  return table.data();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) Status* RegisterCustomOps(SessionOptions* options,
                                                                            const ApiBase* base) {
  true_base = base;
  static const ApiBase changed = {stand_in_table, base->version_string};
  void* const library = dlopen(std::getenv("KVEDGE_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Api(base->get_api(kApiVersion)).create_status(kRuntimeException, dlerror());
  const auto shipped = reinterpret_cast<decltype(&RegisterCustomOps)>(dlsym(library, "RegisterCustomOps"));
  return shipped(options, &changed);
}
