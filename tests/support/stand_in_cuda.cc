// A stand-in of the CUDA driver, for tests without a GPU: "device" memory is memory of the host, and a stream does at
// once what it is given, or keeps it while it records. A stand-in of an engine gives it functions to call.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace {

using Work = void (*)(int64_t);

struct Given {
  Work work;
  int64_t number;
};

constexpr int kSuccess = 0, kInvalid = 1, kOutOfMemory = 2;
constexpr size_t kMemory = size_t{1} << 30;

std::map<void*, size_t> memory;
std::vector<Given>* recording = nullptr;
int integrated = 0, refuses_graphs = 0;
int64_t copies = 0, launches = 0;

int allocate(void** pointer, size_t size) {
  if (size > kMemory) return kOutOfMemory;
  *pointer = std::aligned_alloc(256, (size + 255) / 256 * 256);
  std::memset(*pointer, 0xAB, size);
  memory[*pointer] = size;
  return kSuccess;
}

int release(void* pointer) {
  if (memory.erase(pointer) == 0) return kInvalid;
  std::free(pointer);
  return kSuccess;
}

int copy(void* target, const void* source, size_t size) {
  if (recording) return kInvalid;
  ++copies;
  std::memcpy(target, source, size);
  return kSuccess;
}

}  // namespace

extern "C" {
int cuInit(unsigned) { return kSuccess; }
int cuDeviceGet(int* device, int) { return *device = 0, kSuccess; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &memory, kSuccess; }
int cuCtxSetCurrent(void* context) { return context == &memory ? kSuccess : kInvalid; }
int cuStreamCreate(void** stream, unsigned) { return *stream = &recording, kSuccess; }
int cuStreamDestroy_v2(void* stream) { return stream == &recording ? kSuccess : kInvalid; }
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuStreamSynchronize(void* stream) { return stream == &recording && !recording ? kSuccess : kInvalid; }

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 9 : attribute == 18 ? integrated : -1;
  return kSuccess;
}

int cuMemAlloc_v2(void** pointer, size_t size) { return allocate(pointer, size); }
int cuMemFree_v2(void* pointer) { return release(pointer); }
int cuMemHostAlloc(void** pointer, size_t size, unsigned) { return allocate(pointer, size); }
int cuMemFreeHost(void* pointer) { return release(pointer); }
int cuMemHostGetDevicePointer_v2(void** seen, void* pointer, unsigned) { return *seen = pointer, kSuccess; }
int cuMemsetD8Async(void* pointer, unsigned char value, size_t size, void*) {
  return std::memset(pointer, value, size), kSuccess;
}
int cuMemcpyHtoDAsync_v2(void* target, const void* source, size_t size, void*) { return copy(target, source, size); }
int cuMemcpyDtoHAsync_v2(void* target, const void* source, size_t size, void*) { return copy(target, source, size); }

int cuStreamBeginCapture_v2(void*, int) {
  if (recording) return kInvalid;
  recording = new std::vector<Given>;
  return kSuccess;
}

int cuStreamEndCapture(void*, void** graph) {
  *graph = recording;
  recording = nullptr;
  return *graph ? kSuccess : kInvalid;
}

int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  if (refuses_graphs) return kInvalid;
  *exec = new std::vector<Given>(*static_cast<std::vector<Given>*>(graph));
  return kSuccess;
}
int cuGraphDestroy(void* graph) { return delete static_cast<std::vector<Given>*>(graph), kSuccess; }
int cuGraphExecDestroy(void* graph) { return delete static_cast<std::vector<Given>*>(graph), kSuccess; }

int cuGraphLaunch(void* exec, void*) {
  ++launches;
  for (const Given& given : *static_cast<std::vector<Given>*>(exec)) given.work(given.number);
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kInvalid ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *name ? kSuccess : kInvalid;
}

// Of the stand-in alone.
// It is in the place of kvedge's plugin, too.
int32_t kvedge_tensorrt_version() { return 0; }

void stand_in_enqueue(Work work, int64_t number) {
  if (recording) {
    recording->push_back({work, number});
  } else {
    work(number);
  }
}
int stand_in_is_recording() { return recording != nullptr; }
void stand_in_set_integrated(int value) { integrated = value; }
void stand_in_set_refuses_graphs(int value) { refuses_graphs = value; }
int64_t stand_in_allocations() { return static_cast<int64_t>(memory.size()); }
int64_t stand_in_bytes() {
  int64_t sum = 0;
  for (const auto& each : memory) sum += static_cast<int64_t>(each.second);
  return sum;
}
int64_t stand_in_copies() { return copies; }
int64_t stand_in_launches() { return launches; }
}
