#include "attention.h"

#include "launch/shapes.h"
#include "ort/ort_tensor.h"

namespace kvedge::ort_cuda {
namespace {

using namespace launch;
using ort::Api;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Tensor;

ort::ElementType element_of(Type type) {
  switch (type) {
    case Type::kFloat32: return ort::kFloat;
    case Type::kFloat16: return ort::kFloat16;
    default: return ort::kInt32;
  }
}

Address address_of(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data); }

Attributes read_attributes(const Api& api, const KernelInfo* info) {
  Attributes attributes = {};
  for (const auto& one : kIntegerAttributes) attributes.*one.value = ort::integer_attribute(api, info, kName, one.name);
  for (const auto& one : kFloatAttributes) attributes.*one.value = ort::float_attribute(api, info, kName, one.name);
  return attributes;
}

// Compute capability of the current device: 87 for 8.7.
int chip_of(const Driver& driver) {
  Ordinal device = 0;
  int major = 0, minor = 0;
  driver.require(driver.current_device(&device), "the current CUDA device");
  driver.require(driver.device_attribute(&major, kCapabilityMajor, device), "the compute capability");
  driver.require(driver.device_attribute(&minor, kCapabilityMinor, device), "the compute capability");
  return 10 * major + minor;
}

// The tensors of one step, checked, with outputs made and pools where they are to be written.
class Step {
 public:
  Step(const Api& api, KernelContext* context, const Layer& layer) : api_(api), context_(context), layer_(layer) {
    read_inputs();
    sizes_ = sizes_of(layer, shapes_);
    make_outputs();
  }

  const StepSizes& sizes() const { return sizes_; }
  const Values& tensors() const { return values_; }

  // Where a pool's output is another buffer than its input, it starts as a copy of it.
  void carry_pools(const Driver& driver, Stream stream) const {
    for (const Output& output : layer_.tensors.outputs()) {
      if (output.aliased == kArguments) continue;
      const Tensor& from = inputs_[static_cast<size_t>(layer_.tensors.index(output.aliased))];
      const Address to = values_.at[output.argument].pointer;
      if (to == address_of(from) || from.bytes() == 0) continue;
      driver.require(driver.copy(to, address_of(from), from.bytes(), stream), std::string(output.name) + ", copy");
    }
  }

 private:
  void read_inputs() {
    size_t count = 0;
    ort::require(api_.input_count(context_, &count));
    check_count(layer_, count, layer_.tensors.outputs().size());
    for (size_t i = 0; i < count; ++i) {
      const Argument argument = layer_.tensors.inputs()[i];
      const Tensor tensor = ort::read_input(api_, context_, i, kName, kArgumentNames[argument].name.data());
      const Type expected = type_of(layer_, argument);
      if (!tensor.present || tensor.type != element_of(expected)) {
        throw Failure(tensor.name, name_of(expected), tensor.describe());
      }
      inputs_.push_back(tensor);
      shapes_.emplace_back(tensor.dims, tensor.dims + tensor.rank);
      values_.at[argument].pointer = address_of(tensor);
    }
    check_shapes(layer_, shapes_);
  }

  void make_outputs() {
    const auto& outputs = layer_.tensors.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto [name, argument, aliased] = outputs[i];
      const Shape shape = aliased == kArguments ? shape_of(layer_, argument, sizes_.batch, sizes_.new_tokens)
                                                : shapes_[static_cast<size_t>(layer_.tensors.index(aliased))];
      Tensor like;
      like.name = name;
      like.type = element_of(type_of(layer_, argument));
      like.rank = shape.size();
      std::copy(shape.begin(), shape.end(), like.dims);
      const Tensor tensor = ort::make_output(api_, context_, i, like);
      if (!tensor.present) throw Failure(name, "an output of the node", "none");
      values_.at[argument].pointer = address_of(tensor);
    }
  }

  const Api& api_;
  KernelContext* context_;
  const Layer& layer_;
  std::vector<Tensor> inputs_;
  std::vector<Shape> shapes_;
  StepSizes sizes_ = {};
  Values values_ = {};
};

}  // namespace

std::shared_ptr<StepMemory> Shared::memory(const Driver& driver, Context context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto memory = memories_[context].lock();
  if (!memory) memories_[context] = memory = std::make_shared<StepMemory>(driver);
  return memory;
}

Attention::Attention(Api api, const KernelInfo* info, Shared* shared)
    : api_(api),
      shared_(shared),
      node_(ort::text_of([&](char* text, size_t* size) { return api.node_name(info, text, size); })),
      inputs_(ort::text_attribute(api, info, kName, "inputs")),
      attributes_(read_attributes(api, info)),
      form_(ort::integer_attribute(api, info, kName, "form")) {
  const Driver& driver = cuda_driver();
  if (const Context context = current_context(driver)) ready_ = load(driver, context);
}

void Attention::compute(KernelContext* context) const {
  const Driver& driver = cuda_driver();
  const auto now = ready();
  const Step step(api_, context, now->layer);
  void* pointer = nullptr;
  ort::require(api_.gpu_stream(context, &pointer));
  const auto stream = static_cast<Stream>(pointer);
  step.carry_pools(driver, stream);
  const Plan plan(now->layer, step.sizes());
  // For this step and every smaller one: where the largest comes first, no later one waits for more memory.
  const size_t most = most_workspace(now->layer, step.sizes());
  now->memory->with(stream, most, [&](Address workspace) {
    now->device->run(plan, step.tensors(), workspace, step.sizes().batch, stream);
  });
}

std::shared_ptr<const Attention::Ready> Attention::ready() const {
  const Driver& driver = cuda_driver();
  const Context context = current_context(driver);
  if (context == nullptr) throw Failure("the current CUDA context", "one", "none");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ready_ || ready_->context != context) ready_ = load(driver, context);
  return ready_;
}

std::shared_ptr<const Attention::Ready> Attention::load(const Driver& driver, Context context) const {
  try {
    Layer layer(attributes_, inputs_, shared_->kernels.read(form_, chip_of(driver)));
    auto device = device_of(layer);
    return std::make_shared<const Ready>(
        Ready{context, std::move(layer), std::move(device), shared_->memory(driver, context)});
  } catch (const Failure& failure) {
    throw ort::Complaint{std::string(failure.what()) + " (node '" + node_ + "')"};
  }
}

}  // namespace kvedge::ort_cuda
