// The part of ONNX Runtime's C API that kvedge uses, declared here so that building kvedge needs a
// C++ compiler and nothing else.
//
// That API is a table of function pointers which only ever grows at its end, so a function is known
// by its place in the table. tests/plugins/check_ort_header.cc compares every place named here with the
// official header wherever that is installed.
#ifndef KVEDGE_ORT_ORT_API_H
#define KVEDGE_ORT_ORT_API_H

#include <cstddef>
#include <cstdint>

namespace kvedge::ort {

// The oldest API that has everything below (the reference to a tensor's type and shape came last).
constexpr uint32_t kApiVersion = 24;

// The API whose description of an operator ends where CustomOp does; later ones have more members.
constexpr uint32_t kOpVersion = 17;

// Seen only as pointers.
struct Status;
struct Value;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;

enum ErrorCode : int { kInvalidArgument = 2, kRuntimeException = 6 };
enum ElementType : int { kUndefined = 0, kFloat = 1, kUint8 = 2, kInt32 = 6, kInt64 = 7, kFloat16 = 10 };
enum Presence : int { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum MemoryType : int { kDefaultMemory = 0 };

// Places in the table.
enum Entry : int {
  kCreateStatus = 0,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt64 = 86,
  kKernelInfoGetAttributeString = 87,
  kKernelContextGetInputCount = 88,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kKernelContextGetGPUComputeStream = 193,
  kHasSessionConfigEntry = 237,
  kGetSessionConfigEntry = 238,
  kKernelInfoGetNodeName = 244,
  kKernelContextParallelFor = 274,
  kGetTensorElementTypeAndShapeDataReference = 414,
};

// What RegisterCustomOps is given.
struct ApiBase {
  const void* (*get_api)(uint32_t version);
  const char* (*version_string)();
};

// The description of one operator that ONNX Runtime reads. Members in its order; null = not used.
struct CustomOp {
  uint32_t version;
  void* (*create_kernel)(const CustomOp*, const void* api, const KernelInfo*);
  const char* (*name)(const CustomOp*);
  const char* (*execution_provider)(const CustomOp*);
  ElementType (*input_type)(const CustomOp*, size_t index);
  size_t (*input_count)(const CustomOp*);
  ElementType (*output_type)(const CustomOp*, size_t index);
  size_t (*output_count)(const CustomOp*);
  void (*compute)(void* kernel, KernelContext*);
  void (*destroy_kernel)(void* kernel);
  Presence (*input_presence)(const CustomOp*, size_t index);
  Presence (*output_presence)(const CustomOp*, size_t index);
  MemoryType (*input_memory)(const CustomOp*, size_t index);
  int (*variadic_input_minimum)(const CustomOp*);
  int (*variadic_input_same_type)(const CustomOp*);
  int (*variadic_output_minimum)(const CustomOp*);
  int (*variadic_output_same_type)(const CustomOp*);
  Status* (*create_kernel_v2)(const CustomOp*, const void* api, const KernelInfo*, void** kernel);
  Status* (*compute_v2)(void* kernel, KernelContext*);
  Status* (*infer_output_shape)(const CustomOp*, void* context);
  int (*first_opset)(const CustomOp*);
  int (*last_opset)(const CustomOp*);
};

// The table with typed names. A null Status* means success.
class Api {
 public:
  explicit Api(const void* table) : table_(static_cast<void* const*>(table)) {}

  Status* create_status(ErrorCode code, const char* message) const {
    return call<Status*>(kCreateStatus, code, message);
  }
  void release(Status* status) const { call<void>(kReleaseStatus, status); }

  Status* create_domain(const char* name, CustomOpDomain** domain) const {
    return call<Status*>(kCreateCustomOpDomain, name, domain);
  }
  Status* add_op(CustomOpDomain* domain, const CustomOp* op) const {
    return call<Status*>(kCustomOpDomainAdd, domain, op);
  }
  Status* add_domain(SessionOptions* options, CustomOpDomain* domain) const {
    return call<Status*>(kAddCustomOpDomain, options, domain);
  }

  Status* has_config(const SessionOptions* options, const char* key, int* has) const {
    return call<Status*>(kHasSessionConfigEntry, options, key, has);
  }
  // Copies the text with its end; *size is the room for it, then its length. Without room only its length.
  Status* config(const SessionOptions* options, const char* key, char* text, size_t* size) const {
    return call<Status*>(kGetSessionConfigEntry, options, key, text, size);
  }

  // As config.
  Status* node_name(const KernelInfo* info, char* text, size_t* size) const {
    return call<Status*>(kKernelInfoGetNodeName, info, text, size);
  }
  Status* attribute(const KernelInfo* info, const char* name, float* value) const {
    return call<Status*>(kKernelInfoGetAttributeFloat, info, name, value);
  }
  Status* attribute(const KernelInfo* info, const char* name, int64_t* value) const {
    return call<Status*>(kKernelInfoGetAttributeInt64, info, name, value);
  }
  // As config. Fails where the room is too small.
  Status* attribute(const KernelInfo* info, const char* name, char* text, size_t* size) const {
    return call<Status*>(kKernelInfoGetAttributeString, info, name, text, size);
  }

  Status* input_count(const KernelContext* context, size_t* count) const {
    return call<Status*>(kKernelContextGetInputCount, context, count);
  }
  // An optional input that the node leaves out yields a null value.
  Status* input(const KernelContext* context, size_t index, const Value** value) const {
    return call<Status*>(kKernelContextGetInput, context, index, value);
  }
  // An optional output that the node leaves out yields a null value.
  Status* output(KernelContext* context, size_t index, const int64_t* dims, size_t rank, Value** value) const {
    return call<Status*>(kKernelContextGetOutput, context, index, dims, rank, value);
  }
  // The stream that the node's work belongs on; null on a CPU.
  Status* gpu_stream(const KernelContext* context, void** stream) const {
    return call<Status*>(kKernelContextGetGPUComputeStream, context, stream);
  }
  // Runs task(data, i) for 0 <= i < total on ONNX Runtime's own threads and waits for all of them.
  Status* parallel_for(const KernelContext* context, void (*task)(void*, size_t), size_t total, size_t batches,
                       void* data) const {
    return call<Status*>(kKernelContextParallelFor, context, task, total, batches, data);
  }

  Status* data(Value* value, void** data) const { return call<Status*>(kGetTensorMutableData, value, data); }
  // The shape is the tensor's own: nothing to free.
  Status* shape(const Value* value, ElementType* type, const int64_t** dims, size_t* rank) const {
    return call<Status*>(kGetTensorElementTypeAndShapeDataReference, value, type, dims, rank);
  }

 private:
  template <class Result, class... Arguments>
  Result call(Entry entry, Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(table_[entry])(arguments...);
  }

  void* const* table_;
};

}  // namespace kvedge::ort

#endif
