// A stand-in of the CUDA driver, built as libcuda.so.1: it computes nothing, and writes down what it is asked, one JSON
// document a line. The file that KVEDGE_STAND_IN names says how it behaves, as name=value lines; calls are appended to
// the file of that name with .calls behind it. types.SYMBOL are Triton's types of a kernel's parameters.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "launch/driver_api.h"

namespace {

using namespace kvedge::launch;

std::string path() { return std::getenv("KVEDGE_STAND_IN"); }

// What the file says now; empty where it says nothing.
std::string option(const std::string& name) {
  std::ifstream file(path());
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + "=", 0) == 0) return line.substr(name.size() + 1);
  }
  return "";
}

int number(const std::string& name, int otherwise) {
  const std::string text = option(name);
  return text.empty() ? otherwise : std::stoi(text);
}

class Call {
 public:
  ~Call() { std::ofstream(path() + ".calls", std::ios::app) << "{" << text_.str() << "}\n"; }

  template <typename Value>
  Call& with(const char* name, const Value& value) {
    text_ << (text_.tellp() > 0 ? ", " : "") << '"' << name << "\": " << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string listed(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return "[" + out + "]";
}

template <typename T>
std::string read(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  std::ostringstream out;
  out.precision(9);
  out << value;
  return out.str();
}

std::string parameter(const std::string& type, const void* at) {
  if (type[0] == '*') return read<uint64_t>(at);
  return type == "fp32" ? read<float>(at) : read<int32_t>(at);
}

std::deque<std::string> symbols;
uintptr_t modules = 0;
Address next_address = 0xd0000000;

const std::string& symbol_of(Function function) { return *reinterpret_cast<const std::string*>(function); }

// The result that the file has for a call; 0 is success.
Result result_of(const char* call) { return static_cast<Result>(number(std::string("result.") + call, kSuccess)); }

}  // namespace

#define DRIVER_ENTRY extern "C" __attribute__((visibility("default"))) Result

DRIVER_ENTRY cuGetErrorString(Result, const char** text) { return *text = "said by a stand-in", kSuccess; }

DRIVER_ENTRY cuDriverGetVersion(int* version) { return *version = 12040, kSuccess; }

DRIVER_ENTRY cuCtxGetCurrent(Context* context) {
  *context = reinterpret_cast<Context>(static_cast<uintptr_t>(number("context", 0xc0)));
  return kSuccess;
}

DRIVER_ENTRY cuCtxGetDevice(Ordinal* device) { return *device = 0, kSuccess; }

DRIVER_ENTRY cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Ordinal) {
  const int sm = number("sm", 87);
  *value = attribute == kCapabilityMajor ? sm / 10 : sm % 10;
  return kSuccess;
}

DRIVER_ENTRY cuModuleLoadDataEx(Module* module, const void* code, unsigned, JitOption*, void**) {
  if (const Result wrong = result_of("load"); wrong != kSuccess) return wrong;
  if (std::memcmp(code, "\x7f" "ELF", 4) != 0) return kErrorInvalidImage;
  *module = reinterpret_cast<Module>(++modules);
  Call().with("module", modules);
  return kSuccess;
}

DRIVER_ENTRY cuModuleUnload(Module module) {
  Call().with("unload", reinterpret_cast<uintptr_t>(module));
  return kSuccess;
}

DRIVER_ENTRY cuModuleGetFunction(Function* function, Module, const char* symbol) {
  *function = reinterpret_cast<Function>(&symbols.emplace_back(symbol));
  return kSuccess;
}

DRIVER_ENTRY cuFuncSetAttribute(Function function, FunctionAttribute attribute, int value) {
  Call().with("shared", quoted(symbol_of(function))).with("attribute", attribute).with("bytes", value);
  return kSuccess;
}

DRIVER_ENTRY cuMemAlloc_v2(Address* address, size_t bytes) {
  if (const Result wrong = result_of("allocate"); wrong != kSuccess) return wrong;
  *address = next_address;
  next_address += bytes;
  Call().with("allocated", *address).with("bytes", bytes);
  return kSuccess;
}

DRIVER_ENTRY cuMemFree_v2(Address address) { return Call().with("freed", address), kSuccess; }

DRIVER_ENTRY cuMemcpyHtoD_v2(Address to, const void*, size_t bytes) {
  Call().with("upload", to).with("bytes", bytes);
  return kSuccess;
}

DRIVER_ENTRY cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream stream) {
  Call().with("copy", to).with("from", from).with("bytes", bytes).with("stream", reinterpret_cast<uintptr_t>(stream));
  return kSuccess;
}

DRIVER_ENTRY cuMemsetD32Async(Address address, unsigned value, size_t count, Stream stream) {
  Call().with("fill", address).with("value", value).with("count", count).with("stream", reinterpret_cast<uintptr_t>(stream));
  return kSuccess;
}

DRIVER_ENTRY cuStreamIsCapturing(Stream, CaptureStatus* status) {
  *status = static_cast<CaptureStatus>(number("captures", kNotCapturing));
  return kSuccess;
}

DRIVER_ENTRY cuStreamSynchronize(Stream stream) {
  Call().with("synchronized", reinterpret_cast<uintptr_t>(stream));
  return kSuccess;
}

DRIVER_ENTRY cuLaunchKernel(Function function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                               unsigned, unsigned shared, Stream stream, void** parameters, void**) {
  std::vector<std::string> given;
  std::istringstream types(option("types." + symbol_of(function)));
  for (std::string type; std::getline(types, type, ',');) given.push_back(parameter(type, *parameters++));
  const std::vector<std::string> scratch = {read<uint64_t>(parameters[0]), read<uint64_t>(parameters[1])};
  Call()
      .with("launch", quoted(symbol_of(function)))
      .with("grid", listed({std::to_string(x), std::to_string(y), std::to_string(z)}))
      .with("threads", threads)
      .with("shared", shared)
      .with("stream", reinterpret_cast<uintptr_t>(stream))
      .with("parameters", listed(given))
      .with("scratch", listed(scratch));
  return kSuccess;
}
