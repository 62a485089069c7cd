// What ONNX Runtime loads: registers the operator kvedge::PagedAttention, once for each type of hot pool.
#include <exception>

#include "loops.h"
#include "op_kernel.h"
#include "ort_api.h"
#include "ort_tensor.h"

namespace kvedge {
namespace {

using ort::CustomOp;
using ort::ElementType;

// ONNX Runtime hands the description back to each callback, so facts of ours may follow it.
struct PagedAttention {
  CustomOp op;
  ElementType hot_type;
};

const char* name(const CustomOp*) { return "PagedAttention"; }
const char* execution_provider(const CustomOp*) { return nullptr; }  // the CPU
size_t input_count(const CustomOp*) { return kInputs; }
size_t output_count(const CustomOp*) { return kOutputs; }
ort::MemoryType input_memory(const CustomOp*, size_t) { return ort::kDefaultMemory; }

ElementType hot_type(const CustomOp* op) { return reinterpret_cast<const PagedAttention*>(op)->hot_type; }

ElementType input_type(const CustomOp* op, size_t index) {
  switch (index) {
    case kQ: case kK: case kV: case kSinkCos: case kSinkSin: case kBiasPage: case kBiasFreqs: return ort::kFloat;
    case kHot: return hot_type(op);
    default: return ort::kInt32;
  }
}

ElementType output_type(const CustomOp* op, size_t index) {
  switch (index) {
    case kOut: return ort::kFloat;
    case kHotOut: return hot_type(op);
    default: return ort::kInt32;
  }
}

ort::Presence input_presence(const CustomOp*, size_t index) {
  switch (index) {
    case kPacked: case kPackedTable: case kSinkCos: case kSinkSin: return ort::kOptional;
    case kBiasPage: case kBiasFreqs: case kBiasChannels: return ort::kOptional;
    default: return ort::kRequired;
  }
}

ort::Presence output_presence(const CustomOp*, size_t index) {
  return index == kPackedOut ? ort::kOptional : ort::kRequired;
}

// No C++ exception may cross into ONNX Runtime: each becomes a status, which Python sees as an exception.
template <class Body>
ort::Status* as_status(const ort::Api& api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const ort::Failed& failed) {
    return failed.status;
  } catch (const ort::Complaint& complaint) {
    return api.create_status(ort::kInvalidArgument, complaint.message.c_str());
  } catch (const std::exception& error) {
    return api.create_status(ort::kRuntimeException, error.what());
  }
}

ort::Status* create_kernel(const CustomOp* op, const void* table, const ort::KernelInfo* info, void** kernel) {
  const ort::Api api(table);
  return as_status(api, [&] { *kernel = new OpKernel(api, info, hot_type(op)); });
}

ort::Status* compute(void* kernel, ort::KernelContext* context) {
  const auto* self = static_cast<const OpKernel*>(kernel);
  return as_status(self->api(), [&] { self->compute(context); });
}

void destroy_kernel(void* kernel) { delete static_cast<OpKernel*>(kernel); }

constexpr PagedAttention describe(ElementType hot_type) {
  PagedAttention described = {};
  CustomOp& op = described.op;
  op.version = ort::kApiVersion;
  op.name = name;
  op.execution_provider = execution_provider;
  op.input_type = input_type;
  op.input_count = input_count;
  op.output_type = output_type;
  op.output_count = output_count;
  op.destroy_kernel = destroy_kernel;
  op.input_presence = input_presence;
  op.output_presence = output_presence;
  op.input_memory = input_memory;
  op.create_kernel_v2 = create_kernel;
  op.compute_v2 = compute;
  described.hot_type = hot_type;
  return described;
}

const PagedAttention kFloatPool = describe(ort::kFloat);
const PagedAttention kHalfPool = describe(ort::kFloat16);

// Sessions keep pointing at the domain, so the one of the process is made once and never released.
ort::CustomOpDomain* shared_domain(const ort::Api& api) {
  static ort::CustomOpDomain* const domain = [&api] {
    ort::CustomOpDomain* made = nullptr;
    ort::require(api.create_domain("kvedge", &made));
    ort::require(api.add_op(made, &kFloatPool.op));
    ort::require(api.add_op(made, &kHalfPool.op));
    return made;
  }();
  return domain;
}

}  // namespace
}  // namespace kvedge

extern "C" KVEDGE_API kvedge::ort::Status* RegisterCustomOps(kvedge::ort::SessionOptions* options,
                                                              const kvedge::ort::ApiBase* base) {
  using namespace kvedge;
  const void* table = base->get_api(ort::kApiVersion);
  if (table == nullptr) {
    // Older than the table we know: only its first entry is sure to exist.
    return ort::Api(base->get_api(1))
        .create_status(ort::kRuntimeException,
                       "kvedge: expected ONNX Runtime 1.17 or newer, got an older one; upgrade onnxruntime");
  }
  const ort::Api api(table);
  if (loops_error() != nullptr) return api.create_status(ort::kInvalidArgument, loops_error());
  return as_status(api, [&] { ort::require(api.add_domain(options, shared_domain(api))); });
}
