#include "device.h"

#include <algorithm>
#include <mutex>

#include "failure.h"

namespace kvedge::launch {
namespace {

constexpr int kDefaultShared = 48 << 10;  // bytes that a program gets without asking
constexpr unsigned kWarp = 32;
constexpr size_t kScratchPointers = 2;  // after the named arguments: the compiler's global and profile scratch, unused

// Of CUDA, as people write it.
std::string version_of(const Driver& driver) {
  int version = 0;
  driver.require(driver.version(&version), "the driver's version");
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Device::Device(const Driver& driver, Context context, const Layer& layer)
    : driver_(driver), context_(context), bytes_(layer.kernels), alignment_(layer.bundle.alignment()) {
  try {
    for (const auto& [name, kernel] : layer.bundle.kernels()) load(kernel);
    upload(layer.bundle.dct());
  } catch (...) {
    release();
    throw;
  }
}

Device::~Device() { release(); }

// What fails here does so because the context is gone, and all that was in it.
void Device::release() noexcept {
  for (const Module module : modules_) driver_.unload_module(module);
  if (dct_ != 0) driver_.free(dct_);
}

void Device::load(const Kernel& kernel) {
  const std::string doing = "kernel " + kernel.name + " for sm_" + std::to_string(kernel.sm);
  Module module = nullptr;
  Function function = nullptr;
  const std::string code(kernel.code);  // aligned, which a part of a file is not
  if (const Result result = driver_.load_module(&module, code.data(), 0, nullptr, nullptr); result != kSuccess) {
    driver_.require(result, doing + ", code of CUDA " + kernel.cuda + ", loading with a driver of CUDA " + version_of(driver_));
  }
  modules_.push_back(module);
  driver_.require(driver_.find_function(&function, module, kernel.symbol.c_str()), doing + ", " + kernel.symbol);
  if (kernel.shared > kDefaultShared) {
    driver_.require(
        driver_.set_attribute(function, kMaxDynamicSharedBytes, kernel.shared),
        doing + ", " + std::to_string(kernel.shared) + " bytes of shared memory");
  }
  functions_[kernel.name] = function;
}

void Device::upload(std::string_view dct) {
  driver_.require(driver_.allocate(&dct_, dct.size()), "kernels, dct, allocation");
  driver_.require(driver_.copy_to_device(dct_, dct.data(), dct.size()), "kernels, dct, copy");
}

bool Device::serves(Context context, const Bundle& bundle) const {
  return context_ == context && (&bundle.bytes() == bytes_.get() || bundle.bytes() == *bytes_);
}

void Device::run(const Plan& plan, const Values& tensors, Address workspace, int32_t batch, Stream stream) const {
  check(tensors);
  Values values = plan.numbers;
  std::copy(tensors.at, tensors.at + kPagesRead + 1, values.at);
  for (const Region& region : plan.workspace.regions) {
    values.at[region.argument].pointer = workspace + region.offset;
  }
  values.at[kPackedHalves] = values.at[kPacked];
  values.at[kDct].pointer = dct_;
  const auto count = static_cast<size_t>(batch);
  if (count > 0) driver_.require(driver_.fill(values.at[kPagesRead].pointer, 0, count, stream), "pages_read, clearing");
  for (const Launch& one : plan.launches) launch(one, &values, stream);
}

// Loads of the kernels are as wide as that allows; where it does not hold, the device stops with an error of its own.
void Device::check(const Values& tensors) const {
  for (size_t i = 0; i <= kPagesRead; ++i) {
    const Address at = tensors.at[i].pointer;
    if (at % alignment_ == 0) continue;
    throw Failure(std::string(kArgumentNames[i].name), "an address that " + std::to_string(alignment_) + " divides",
                  std::to_string(at));
  }
}

void Device::launch(const Launch& one, Values* values, Stream stream) const {
  const Kernel& kernel = *one.kernel;
  void* parameters[kArguments + kScratchPointers];
  uint64_t no_scratch = 0;
  size_t count = 0;
  for (const Argument argument : kernel.arguments) parameters[count++] = &values->at[argument];
  for (size_t i = 0; i < kScratchPointers; ++i) parameters[count++] = &no_scratch;
  const unsigned threads = kWarp * static_cast<unsigned>(kernel.warps);
  driver_.require(driver_.launch(functions_.at(kernel.name), one.x, one.y, one.z, threads, 1, 1,
                                 static_cast<unsigned>(kernel.shared), stream, parameters, nullptr),
                  "kernel " + kernel.name + ", launch");
}

std::shared_ptr<const Device> device_of(const Layer& layer) {
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const Device>> known;
  const Driver& driver = cuda_driver();
  const Context context = current_context(driver);
  if (context == nullptr) throw Failure("the current CUDA context", "one", "none");
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& weak : known) {
    const auto device = weak.lock();
    if (device && device->serves(context, layer.bundle)) return device;
  }
  const auto made = std::make_shared<const Device>(driver, context, layer);
  known.erase(std::remove_if(known.begin(), known.end(), [](const auto& weak) { return weak.expired(); }), known.end());
  known.push_back(made);
  return made;
}

}  // namespace kvedge::launch
