// The stand-in of the CUDA driver.
#include <cstring>

#include "tensorrt_stand_in.h"

namespace stand_in {

Calls& calls() {
  static Calls all{Options(0, nullptr), {}, {}, 0, 0, 0xd0000000, {}};
  return all;
}

namespace {

CUresult error_string(CUresult, const char** text) { return *text = "said by a stand-in", CUDA_SUCCESS; }

CUresult current_context(CUcontext* context) {
  *context = calls().options.count("no_context") ? nullptr : reinterpret_cast<CUcontext>(0xc0);
  return CUDA_SUCCESS;
}

CUresult load_module(CUmodule* module, const void* code, unsigned, CUjit_option*, void**) {
  if (calls().options.count("wrong_chip")) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (std::memcmp(code, "\x7f" "ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(static_cast<uintptr_t>(++calls().modules));
  return CUDA_SUCCESS;
}

CUresult unload_module(CUmodule) { return ++calls().unloaded, CUDA_SUCCESS; }

CUresult find_function(CUfunction* function, CUmodule, const char* symbol) {
  *function = reinterpret_cast<CUfunction>(&calls().symbols.emplace_back(symbol));
  return CUDA_SUCCESS;
}

std::string symbol_of(CUfunction function) { return quoted(*reinterpret_cast<const std::string*>(function)); }

CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value) {
  calls().lines.push_back("{\"shared\": " + symbol_of(function) + ", \"attribute\": " + std::to_string(attribute) +
                          ", \"bytes\": " + std::to_string(value) + "}");
  return CUDA_SUCCESS;
}

CUresult allocate(CUdeviceptr* address, size_t bytes) {
  *address = calls().next_address;
  calls().next_address += bytes;
  calls().allocated.push_back(*address);
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr) { return CUDA_SUCCESS; }

CUresult copy_to_device(CUdeviceptr address, const void*, size_t bytes) {
  calls().lines.push_back("{\"copy\": " + std::to_string(address) + ", \"bytes\": " + std::to_string(bytes) + "}");
  return CUDA_SUCCESS;
}

CUresult fill(CUdeviceptr address, unsigned value, size_t count, CUstream) {
  calls().lines.push_back("{\"fill\": " + std::to_string(address) + ", \"value\": " + std::to_string(value) +
                          ", \"count\": " + std::to_string(count) + "}");
  return CUDA_SUCCESS;
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

CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                unsigned shared, CUstream stream, void** parameters, void**) {
  const std::string& symbol = *reinterpret_cast<const std::string*>(function);
  std::vector<std::string> given;
  for (const std::string& type : calls().options.list("types." + symbol)) {
    given.push_back(parameter(type, *parameters++));
  }
  const std::vector<std::string> scratch = {read<uint64_t>(parameters[0]), read<uint64_t>(parameters[1])};
  std::ostringstream out;
  out << "{\"launch\": " << quoted(symbol) << ", \"grid\": [" << x << ", " << y << ", " << z << "], \"threads\": "
      << threads << ", \"shared\": " << shared << ", \"stream\": " << reinterpret_cast<uintptr_t>(stream)
      << ", \"parameters\": " << listed(given) << ", \"scratch\": " << listed(scratch) << "}";
  calls().lines.push_back(out.str());
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace stand_in

namespace kvedge::trt {

// In place of driver.cc's, and weak: where that is linked too, it wins.
__attribute__((weak)) const Driver& cuda_driver() {
  static const Driver driver = {
      stand_in::error_string,   stand_in::current_context, stand_in::load_module, stand_in::unload_module,
      stand_in::find_function,  stand_in::set_attribute,   stand_in::allocate,    stand_in::release,
      stand_in::copy_to_device, stand_in::fill,            stand_in::launch};
  return driver;
}

__attribute__((weak)) void Driver::require(CUresult result, const std::string& doing) const {
  if (result != CUDA_SUCCESS) throw std::runtime_error(doing + ": CUDA error " + std::to_string(result));
}

}  // namespace kvedge::trt
