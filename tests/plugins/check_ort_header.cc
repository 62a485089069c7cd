// Compiles only if plugins/ort/ort_api.h agrees with the official header on every place it names.
#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

#include "ort/ort_api.h"

using namespace kvedge;

// The name, the place in the table, and the number of arguments of one function.
template <class Function>
struct Arity;
template <class Result, class... Arguments>
struct Arity<Result (*)(Arguments...)> : std::integral_constant<int, sizeof...(Arguments)> {};
template <class Result, class... Arguments>
struct Arity<Result (*)(Arguments...) noexcept> : std::integral_constant<int, sizeof...(Arguments)> {};

#define ENTRY(ours, theirs, arguments)                                                      \
  static_assert(offsetof(OrtApi, theirs) == ort::ours * sizeof(void*), #theirs " moved");   \
  static_assert(Arity<decltype(OrtApi::theirs)>::value == arguments, #theirs " takes other arguments");

ENTRY(kCreateStatus, CreateStatus, 2)
ENTRY(kCreateCustomOpDomain, CreateCustomOpDomain, 2)
ENTRY(kCustomOpDomainAdd, CustomOpDomain_Add, 2)
ENTRY(kAddCustomOpDomain, AddCustomOpDomain, 2)
ENTRY(kGetTensorMutableData, GetTensorMutableData, 2)
ENTRY(kKernelInfoGetAttributeFloat, KernelInfoGetAttribute_float, 3)
ENTRY(kKernelInfoGetAttributeInt64, KernelInfoGetAttribute_int64, 3)
ENTRY(kKernelInfoGetAttributeString, KernelInfoGetAttribute_string, 4)
ENTRY(kKernelContextGetInputCount, KernelContext_GetInputCount, 2)
ENTRY(kKernelContextGetInput, KernelContext_GetInput, 3)
ENTRY(kKernelContextGetOutput, KernelContext_GetOutput, 5)
ENTRY(kReleaseStatus, ReleaseStatus, 1)
ENTRY(kKernelContextGetGPUComputeStream, KernelContext_GetGPUComputeStream, 2)
ENTRY(kHasSessionConfigEntry, HasSessionConfigEntry, 3)
ENTRY(kGetSessionConfigEntry, GetSessionConfigEntry, 4)
ENTRY(kKernelInfoGetNodeName, KernelInfo_GetNodeName, 3)
ENTRY(kKernelContextParallelFor, KernelContext_ParallelFor, 5)
#if ORT_API_VERSION >= 24
ENTRY(kGetTensorElementTypeAndShapeDataReference, GetTensorElementTypeAndShapeDataReference, 4)
#endif

#define MEMBER(ours, theirs) \
  static_assert(offsetof(OrtCustomOp, theirs) == offsetof(ort::CustomOp, ours), #theirs " moved");

MEMBER(version, version)
MEMBER(create_kernel, CreateKernel)
MEMBER(name, GetName)
MEMBER(execution_provider, GetExecutionProviderType)
MEMBER(input_type, GetInputType)
MEMBER(input_count, GetInputTypeCount)
MEMBER(output_type, GetOutputType)
MEMBER(output_count, GetOutputTypeCount)
MEMBER(compute, KernelCompute)
MEMBER(destroy_kernel, KernelDestroy)
MEMBER(input_presence, GetInputCharacteristic)
MEMBER(output_presence, GetOutputCharacteristic)
MEMBER(input_memory, GetInputMemoryType)
MEMBER(variadic_input_minimum, GetVariadicInputMinArity)
MEMBER(variadic_input_same_type, GetVariadicInputHomogeneity)
MEMBER(variadic_output_minimum, GetVariadicOutputMinArity)
MEMBER(variadic_output_same_type, GetVariadicOutputHomogeneity)
MEMBER(create_kernel_v2, CreateKernelV2)
MEMBER(compute_v2, KernelComputeV2)
MEMBER(infer_output_shape, InferOutputShapeFn)
MEMBER(first_opset, GetStartVersion)
MEMBER(last_opset, GetEndVersion)

static_assert(offsetof(OrtApiBase, GetApi) == offsetof(ort::ApiBase, get_api));
static_assert(offsetof(OrtApiBase, GetVersionString) == offsetof(ort::ApiBase, version_string));

static_assert(int{ORT_INVALID_ARGUMENT} == ort::kInvalidArgument);
static_assert(int{ORT_RUNTIME_EXCEPTION} == ort::kRuntimeException);
static_assert(int{ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED} == ort::kUndefined);
static_assert(int{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT} == ort::kFloat);
static_assert(int{ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8} == ort::kUint8);
static_assert(int{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64} == ort::kInt64);
static_assert(int{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16} == ort::kFloat16);
static_assert(int{ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32} == ort::kInt32);
static_assert(int{INPUT_OUTPUT_REQUIRED} == ort::kRequired && int{INPUT_OUTPUT_OPTIONAL} == ort::kOptional);
static_assert(int{INPUT_OUTPUT_VARIADIC} == ort::kVariadic);
static_assert(int{OrtMemTypeDefault} == ort::kDefaultMemory);
static_assert(ORT_API_VERSION >= ort::kOpVersion);
