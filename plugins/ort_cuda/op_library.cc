// What ONNX Runtime loads: registers kvedge::PagedAttention for the CUDA provider.
#include "attention.h"

namespace kvedge::ort_cuda {
namespace {

using ort::Api;
using ort::CustomOp;
using ort::KernelInfo;

constexpr const char *kProvider = "CUDAExecutionProvider", *kFolderKey = "kvedge.kernels";

// The operator with the kernels of one folder. Sessions keep pointing at it, so it is made once and never released.
struct Op : CustomOp {
  Shared shared;
  ort::CustomOpDomain* domain = nullptr;

  explicit Op(const std::string& folder) : CustomOp(ort::describe_ports<Attention>()), shared(folder) {
    execution_provider = [](const CustomOp*) { return kProvider; };
    variadic_input_minimum = variadic_output_minimum = [](const CustomOp*) { return 1; };
    variadic_input_same_type = variadic_output_same_type = [](const CustomOp*) { return 0; };
    create_kernel_v2 = [](const CustomOp* op, const void* table, const KernelInfo* info, void** kernel) {
      const Api api(table);
      Shared* const of_op = &static_cast<Op*>(const_cast<CustomOp*>(op))->shared;
      return ort::as_status(api, [&] { *kernel = new Attention(api, info, of_op); });
    };
  }
};

ort::CustomOpDomain* domain_of(const Api& api, const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Op>> ops;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Op>& op = ops[folder];
  if (!op) op = std::make_unique<Op>(folder);
  if (op->domain == nullptr) {
    ort::CustomOpDomain* made = nullptr;
    ort::require(api.create_domain("kvedge", &made));
    ort::require(api.add_op(made, op.get()));
    op->domain = made;
  }
  return op->domain;
}

std::string folder_of(const Api& api, const ort::SessionOptions* options) {
  int has = 0;
  ort::require(api.has_config(options, kFolderKey, &has));
  if (has == 0) {
    throw ort::Complaint{std::string("kvedge: session option ") + kFolderKey +
                         ": expected the folder of the kernels before this library is registered, got none"};
  }
  return ort::text_of([&](char* text, size_t* size) { return api.config(options, kFolderKey, text, size); });
}

}  // namespace
}  // namespace kvedge::ort_cuda

extern "C" __attribute__((visibility("default"))) kvedge::ort::Status* RegisterCustomOps(
    kvedge::ort::SessionOptions* options, const kvedge::ort::ApiBase* base) {
  using namespace kvedge;
  return ort::with_api(base, [&](const ort::Api& api) {
    ort::require(api.add_domain(options, ort_cuda::domain_of(api, ort_cuda::folder_of(api, options))));
  });
}
