// Describes one operator to ONNX Runtime from its kernel class, which has
//   static const char* name(); static Port input(size_t); static Port output(size_t); kInputs, kOutputs
//   Kernel(Api, const KernelInfo*); void compute(KernelContext*) const, which throws; const Api& api() const
#ifndef KVEDGE_ORT_ORT_OP_H
#define KVEDGE_ORT_ORT_OP_H

#include <exception>

#include "ort_api.h"
#include "ort_tensor.h"

namespace kvedge::ort {

struct Port {
  ElementType type;
  Presence presence;
};

// No C++ exception may cross into ONNX Runtime: each becomes a status, which Python sees as an exception.
template <class Body>
Status* as_status(const Api& api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const Failed& failed) {
    return failed.status;
  } catch (const Complaint& complaint) {
    return api.create_status(kInvalidArgument, complaint.message.c_str());
  } catch (const std::exception& error) {
    return api.create_status(kRuntimeException, error.what());
  }
}

template <class Kernel>
struct Callbacks {
  static const char* name(const CustomOp*) { return Kernel::name(); }
  static const char* execution_provider(const CustomOp*) { return nullptr; }  // the CPU
  static size_t input_count(const CustomOp*) { return Kernel::kInputs; }
  static size_t output_count(const CustomOp*) { return Kernel::kOutputs; }
  static MemoryType input_memory(const CustomOp*, size_t) { return kDefaultMemory; }
  static ElementType input_type(const CustomOp*, size_t index) { return Kernel::input(index).type; }
  static ElementType output_type(const CustomOp*, size_t index) { return Kernel::output(index).type; }
  static Presence input_presence(const CustomOp*, size_t index) { return Kernel::input(index).presence; }
  static Presence output_presence(const CustomOp*, size_t index) { return Kernel::output(index).presence; }

  static Status* create_kernel(const CustomOp*, const void* table, const KernelInfo* info, void** kernel) {
    const Api api(table);
    return as_status(api, [&] { *kernel = new Kernel(api, info); });
  }
  static Status* compute(void* kernel, KernelContext* context) {
    const auto* self = static_cast<const Kernel*>(kernel);
    return as_status(self->api(), [&] { self->compute(context); });
  }
  static void destroy_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }
};

// All but how a kernel is made.
template <class Kernel>
constexpr CustomOp describe_ports() {
  using Call = Callbacks<Kernel>;
  CustomOp op = {};
  op.version = kOpVersion;
  op.name = Call::name;
  op.execution_provider = Call::execution_provider;
  op.input_type = Call::input_type;
  op.input_count = Call::input_count;
  op.output_type = Call::output_type;
  op.output_count = Call::output_count;
  op.destroy_kernel = Call::destroy_kernel;
  op.input_presence = Call::input_presence;
  op.output_presence = Call::output_presence;
  op.input_memory = Call::input_memory;
  op.compute_v2 = Call::compute;
  return op;
}

template <class Kernel>
constexpr CustomOp describe() {
  CustomOp op = describe_ports<Kernel>();
  op.create_kernel_v2 = Callbacks<Kernel>::create_kernel;
  return op;
}

// What RegisterCustomOps answers: the status of body(api), or that ONNX Runtime is too old.
template <class Body>
Status* with_api(const ApiBase* base, Body body) {
  const void* table = base->get_api(kApiVersion);
  if (table == nullptr) {
    // Older than the table we know: only its first entry is sure to exist.
    return Api(base->get_api(1))
        .create_status(kRuntimeException,
                       "kvedge: expected ONNX Runtime 1.24 or newer, got an older one; upgrade onnxruntime");
  }
  const Api api(table);
  return as_status(api, [&] { body(api); });
}

}  // namespace kvedge::ort
#endif
