// The part of the CUDA driver's API that kvedge uses, declared here so that building kvedge needs a C++ compiler and
// nothing else. The driver keeps every symbol that it ever had; tests/plugins/check_cuda_header.cc compares signatures
// and numbers with the official header wherever that is found.
#ifndef KVEDGE_LAUNCH_DRIVER_API_H
#define KVEDGE_LAUNCH_DRIVER_API_H

#include <cstddef>

// The driver's own names: a cudaStream_t points at the same type.
struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;

namespace kvedge::launch {

using Context = CUctx_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Stream = CUstream_st*;
using Address = unsigned long long;  // in device memory
using Ordinal = int;                 // of a device

enum Result : unsigned {
  kSuccess = 0,
  kErrorInvalidImage = 200,
  kErrorNoBinaryForGpu = 209,
};
enum FunctionAttribute : unsigned { kMaxDynamicSharedBytes = 8 };
enum DeviceAttribute : unsigned { kCapabilityMajor = 75, kCapabilityMinor = 76 };
enum CaptureStatus : unsigned { kNotCapturing = 0 };

// Options of load_module, never given.
struct JitOption;

// Member of Driver, symbol of the driver, parameters.
#define KVEDGE_DRIVER_ENTRIES(ENTRY)                                                                              \
  ENTRY(error_string, cuGetErrorString, (Result, const char** text))                                              \
  ENTRY(version, cuDriverGetVersion, (int* thousands_and_tens))                                                   \
  ENTRY(current_context, cuCtxGetCurrent, (Context*))                                                             \
  ENTRY(current_device, cuCtxGetDevice, (Ordinal*))                                                               \
  ENTRY(device_attribute, cuDeviceGetAttribute, (int* value, DeviceAttribute, Ordinal))                           \
  ENTRY(load_module, cuModuleLoadDataEx, (Module*, const void* code, unsigned options, JitOption*, void** values)) \
  ENTRY(unload_module, cuModuleUnload, (Module))                                                                  \
  ENTRY(find_function, cuModuleGetFunction, (Function*, Module, const char* symbol))                              \
  ENTRY(set_attribute, cuFuncSetAttribute, (Function, FunctionAttribute, int value))                              \
  ENTRY(allocate, cuMemAlloc_v2, (Address*, size_t bytes))                                                        \
  ENTRY(free, cuMemFree_v2, (Address))                                                                            \
  ENTRY(copy_to_device, cuMemcpyHtoD_v2, (Address to, const void* from, size_t bytes))                            \
  ENTRY(copy, cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t bytes, Stream))                             \
  ENTRY(fill, cuMemsetD32Async, (Address, unsigned value, size_t count, Stream))                                  \
  ENTRY(capture_status, cuStreamIsCapturing, (Stream, CaptureStatus*))                                            \
  ENTRY(synchronize, cuStreamSynchronize, (Stream))                                                               \
  ENTRY(launch, cuLaunchKernel,                                                                                   \
        (Function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, \
         unsigned shared, Stream, void** parameters, void** extra))

}  // namespace kvedge::launch
#endif
