// Compiles only if plugins/launch/driver_api.h agrees with the official header on everything that it names.
#include <cuda.h>

#include <type_traits>

#include "launch/driver_api.h"

using namespace kvedge;

static_assert(std::is_same_v<CUcontext, launch::Context> && std::is_same_v<CUmodule, launch::Module>);
static_assert(std::is_same_v<CUfunction, launch::Function> && std::is_same_v<CUstream, launch::Stream>);
static_assert(std::is_same_v<CUdeviceptr, launch::Address> && std::is_same_v<CUdevice, launch::Ordinal>);

// An enumeration of ours stands for one of theirs; all else is the same.
template <class Ours>
struct Theirs {
  using Type = Ours;
};
template <class Ours>
struct Theirs<Ours*> {
  using Type = typename Theirs<Ours>::Type*;
};
template <> struct Theirs<launch::Result> { using Type = CUresult; };
template <> struct Theirs<launch::FunctionAttribute> { using Type = CUfunction_attribute; };
template <> struct Theirs<launch::DeviceAttribute> { using Type = CUdevice_attribute; };
template <> struct Theirs<launch::CaptureStatus> { using Type = CUstreamCaptureStatus; };
template <> struct Theirs<launch::JitOption> { using Type = CUjit_option; };
template <class Result, class... Arguments>
struct Theirs<Result (*)(Arguments...)> {
  using Type = typename Theirs<Result>::Type (*)(typename Theirs<Arguments>::Type...);
};

#define ENTRY(member, symbol, parameters)                                                                     \
  static_assert(std::is_same_v<Theirs<launch::Result (*) parameters>::Type, decltype(&::symbol)>, #symbol " differs");
namespace kvedge::launch {
KVEDGE_DRIVER_ENTRIES(ENTRY)
}  // namespace kvedge::launch

#define NUMBER(ours, theirs) static_assert(int{theirs} == int{launch::ours}, #theirs " is another number");
NUMBER(kSuccess, CUDA_SUCCESS)
NUMBER(kErrorInvalidImage, CUDA_ERROR_INVALID_IMAGE)
NUMBER(kErrorNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU)
NUMBER(kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
NUMBER(kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
NUMBER(kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
NUMBER(kNotCapturing, CU_STREAM_CAPTURE_STATUS_NONE)

static_assert(sizeof(CUresult) == sizeof(launch::Result) && sizeof(CUdevice_attribute) == sizeof(launch::DeviceAttribute));
static_assert(sizeof(CUfunction_attribute) == sizeof(launch::FunctionAttribute));
static_assert(sizeof(CUstreamCaptureStatus) == sizeof(launch::CaptureStatus));
