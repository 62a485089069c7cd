#include "plugin.h"

#include <limits>

#include "fields.h"
#include "launch/failure.h"
#include "log.h"
#include "shapes.h"

namespace kvedge::trt {
namespace {

using namespace nvinfer1;

constexpr int32_t kDone = 0, kFailed = -1;
constexpr size_t kNoSize = std::numeric_limits<size_t>::max() / 2;  // a build with it fails, as it shall

Shape shape_of(const PluginTensorDesc& tensor) { return trt::shape_of(tensor.dims); }
Shape shape_of(const DynamicPluginTensorDesc& tensor) { return trt::shape_of(tensor.desc.dims); }

template <typename Desc>
std::vector<Shape> shapes_of(const Desc* tensors, int32_t count) {
  std::vector<Shape> shapes;
  for (int32_t i = 0; i < count; ++i) shapes.push_back(shape_of(tensors[i]));
  return shapes;
}

void check_counts(const Layer& layer, int32_t inputs, int32_t outputs) {
  check_count(layer, static_cast<size_t>(inputs), static_cast<size_t>(outputs));
}

template <typename Desc>
void check(const Layer& layer, const Desc* in, int32_t inputs, const Desc* out, int32_t outputs) {
  check_counts(layer, inputs, outputs);
  std::vector<Shape> shapes = shapes_of(in, inputs);
  for (Shape& one : shapes_of(out, outputs)) shapes.push_back(std::move(one));
  check_shapes(layer, shapes);
}

void check_type(const Layer& layer, size_t input, DataType got) {
  const DataType expected = data_type_of(layer, layer.tensors.inputs()[input]);
  if (got != expected) throw Failure(layer.tensors.name(input), text_of(expected), text_of(got));
}

}  // namespace

Plugin::Plugin(std::shared_ptr<const Layer> layer, TensorRTPhase phase)
    : layer_(std::move(layer)), phase_(phase), fields_(fields_of(layer_.get())) {}

IPluginCapability* Plugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
  switch (type) {
    case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

IPluginV3* Plugin::clone() noexcept {
  return guarded<IPluginV3*>(nullptr, [this] { return new Plugin(layer_, phase_); });
}

const char* Plugin::getPluginName() const noexcept { return kName; }
const char* Plugin::getPluginVersion() const noexcept { return kVersion; }
const char* Plugin::getPluginNamespace() const noexcept { return kNamespace; }
int32_t Plugin::getNbOutputs() const noexcept { return static_cast<int32_t>(layer_->tensors.outputs().size()); }

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc* out,
                                int32_t outputs) noexcept {
  return guarded(kFailed, [&] { return check(*layer_, in, inputs, out, outputs), kDone; });
}

int32_t Plugin::getOutputDataTypes(DataType* types, int32_t outputs, const DataType* input_types,
                                   int32_t inputs) const noexcept {
  return guarded(kFailed, [&] {
    check_counts(*layer_, inputs, outputs);
    const Tensors& tensors = layer_->tensors;
    for (size_t i = 0; i < tensors.inputs().size(); ++i) check_type(*layer_, i, input_types[i]);
    for (size_t i = 0; i < tensors.outputs().size(); ++i) types[i] = data_type_of(*layer_, tensors.outputs()[i].argument);
    return kDone;
  });
}

int32_t Plugin::getOutputShapes(const DimsExprs* in, int32_t inputs, const DimsExprs*, int32_t, DimsExprs* out,
                                int32_t outputs, IExprBuilder& builder) noexcept {
  return guarded(kFailed, [&] {
    check_counts(*layer_, inputs, outputs);
    const DimsExprs& q = in[layer_->tensors.index(kQ)];
    if (q.nbDims != 4) throw Failure("q", "4 dimensions", std::to_string(q.nbDims));
    const int64_t width = int64_t{layer_->attributes.heads} * layer_->attributes.head_dim;
    for (int32_t i = 0; i < outputs; ++i) {
      const Output& output = layer_->tensors.outputs()[static_cast<size_t>(i)];
      out[i].nbDims = output.argument == kOut ? 3 : 1;
      out[i].d[0] = q.d[0];
      if (output.argument == kOut) {
        out[i].d[1] = q.d[2];
        out[i].d[2] = builder.constant(width);
      }
      if (output.aliased != kArguments) out[i] = in[layer_->tensors.index(output.aliased)];
    }
    return kDone;
  });
}

bool Plugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors, int32_t inputs,
                                       int32_t outputs) noexcept {
  return guarded(false, [&] {
    check_counts(*layer_, inputs, outputs);
    const PluginTensorDesc& desc = tensors[position].desc;
    const Argument tensor = layer_->tensors.argument(static_cast<size_t>(position));
    return desc.format == TensorFormat::kLINEAR && desc.type == data_type_of(*layer_, tensor);
  });
}

size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* in, int32_t inputs, const DynamicPluginTensorDesc*,
                                int32_t) const noexcept {
  return guarded(kNoSize, [&] {
    std::vector<Shape> most;
    for (int32_t i = 0; i < inputs; ++i) most.push_back(trt::shape_of(in[i].max));
    return most_workspace(*layer_, sizes_of(*layer_, most));
  });
}

int32_t Plugin::getAliasedInput(int32_t output) noexcept {
  const auto& outputs = layer_->tensors.outputs();
  if (output < 0 || output >= getNbOutputs()) return -1;
  const Argument aliased = outputs[static_cast<size_t>(output)].aliased;
  return aliased == kArguments ? -1 : layer_->tensors.index(aliased);
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* in, int32_t inputs, const PluginTensorDesc* out,
                              int32_t outputs) noexcept {
  return guarded(kFailed, [&] {
    check(*layer_, in, inputs, out, outputs);
    step_ = sizes_of(*layer_, shapes_of(in, inputs));
    plan_.emplace(*layer_, step_);
    return kDone;
  });
}

// While an engine is built, TensorRT times plugins on whatever lies in memory: block tables would lead kernels
// astray. So a plugin launches only in an engine that was loaded.
int32_t Plugin::enqueue(const PluginTensorDesc*, const PluginTensorDesc*, const void* const* in, void* const* out,
                        void* workspace, cudaStream_t stream) noexcept {
  return guarded(kFailed, [&] {
    if (phase_ == TensorRTPhase::kBUILD) return say_that_nothing_runs(), kDone;
    if (!plan_) throw Failure("enqueue", "onShapeChange before it", "none");
    if (!device_) device_ = device_of(*layer_);
    device_->run(*plan_, pointers(in, out), reinterpret_cast<uintptr_t>(workspace), step_.batch, stream);
    return kDone;
  });
}

// Once, and only in a context: there someone may wait for results.
void Plugin::say_that_nothing_runs() {
  if (!attached_ || said_) return;
  said_ = true;
  const std::string text = std::string(kName) + ": nothing is launched by an engine that was not serialized and loaded";
  log(ILogger::Severity::kWARNING, text.c_str());
}

Values Plugin::pointers(const void* const* in, void* const* out) const {
  const Tensors& tensors = layer_->tensors;
  Values values;
  for (size_t i = 0; i < tensors.inputs().size(); ++i) {
    values.at[tensors.inputs()[i]].pointer = reinterpret_cast<uintptr_t>(in[i]);
  }
  for (size_t i = 0; i < tensors.outputs().size(); ++i) {
    const Output& output = tensors.outputs()[i];
    if (output.aliased == kArguments) {
      values.at[output.argument].pointer = reinterpret_cast<uintptr_t>(out[i]);
    } else if (out[i] != in[tensors.index(output.aliased)]) {
      const std::string input(kArgumentNames[output.aliased].name);
      const std::string expected = "the buffer of " + input + ", written in place";
      throw Failure(output.name, expected + " (PreviewFeature::kALIASED_PLUGIN_IO_10_03)", "another one");
    }
  }
  return values;
}

IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept {
  return guarded<IPluginV3*>(nullptr, [this] {
    auto attached = std::make_unique<Plugin>(layer_, phase_);
    attached->attached_ = true;
    if (phase_ == TensorRTPhase::kRUNTIME) attached->device_ = device_of(*layer_);
    return attached.release();
  });
}

const PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
  return &collection_;
}

}  // namespace kvedge::trt
