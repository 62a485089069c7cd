// A stand-in of the CUDA driver, built as libcuda.so.1, whose device is the host: memory is the host's, and launches are
// calls to whoever asked for them, at once.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "launch/driver_api.h"

namespace {

using namespace kvedge::launch;
using OnLaunch = void (*)(const char* symbol, unsigned x, unsigned y, unsigned z, void** parameters);

OnLaunch on_launch = nullptr;
std::map<Address, size_t> memory;
std::set<std::string> symbols;

void* pointer(Address address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void stand_in_on_launch(OnLaunch call) { on_launch = call; }

// Bytes from an address to the end of what was allocated there; 0 where nothing was.
EXPORTED size_t stand_in_room(Address address) {
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return 0;
  const auto [first, bytes] = *--next;
  return address < first + bytes ? static_cast<size_t>(first + bytes - address) : 0;
}

EXPORTED Result cuGetErrorString(Result, const char** text) { return *text = "said by a stand-in", kSuccess; }
EXPORTED Result cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
EXPORTED Result cuCtxGetCurrent(Context* context) { return *context = reinterpret_cast<Context>(1), kSuccess; }
EXPORTED Result cuCtxGetDevice(Ordinal* device) { return *device = 0, kSuccess; }
EXPORTED Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Ordinal) {
  return *value = attribute == kCapabilityMajor ? 8 : 7, kSuccess;
}
EXPORTED Result cuModuleLoadDataEx(Module* module, const void*, unsigned, JitOption*, void**) {
  return *module = reinterpret_cast<Module>(1), kSuccess;
}
EXPORTED Result cuModuleUnload(Module) { return kSuccess; }
EXPORTED Result cuModuleGetFunction(Function* function, Module, const char* symbol) {
  *function = reinterpret_cast<Function>(const_cast<char*>(symbols.insert(symbol).first->c_str()));
  return kSuccess;
}
EXPORTED Result cuFuncSetAttribute(Function, FunctionAttribute, int) { return kSuccess; }
EXPORTED Result cuStreamIsCapturing(Stream, CaptureStatus* status) { return *status = kNotCapturing, kSuccess; }
EXPORTED Result cuStreamSynchronize(Stream) { return kSuccess; }

EXPORTED Result cuMemAlloc_v2(Address* address, size_t bytes) {
  void* const made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(made, 0xff, bytes);  // not a number, or -1
  *address = reinterpret_cast<uintptr_t>(made);
  memory[*address] = bytes;
  return kSuccess;
}
EXPORTED Result cuMemFree_v2(Address address) {
  memory.erase(address);
  return std::free(pointer(address)), kSuccess;
}
EXPORTED Result cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return std::memcpy(pointer(to), from, bytes), kSuccess;
}
EXPORTED Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream) {
  return std::memcpy(pointer(to), pointer(from), bytes), kSuccess;
}
EXPORTED Result cuMemsetD32Async(Address address, unsigned value, size_t count, Stream) {
  for (size_t i = 0; i < count; ++i) static_cast<uint32_t*>(pointer(address))[i] = value;
  return kSuccess;
}
EXPORTED Result cuLaunchKernel(Function function, unsigned x, unsigned y, unsigned z, unsigned, unsigned, unsigned,
                               unsigned, Stream, void** parameters, void**) {
  on_launch(reinterpret_cast<const char*>(function), x, y, z, parameters);
  return kSuccess;
}
