// kvedge's PagedAttention as TensorRT runs it.
#ifndef KVEDGE_TENSORRT_PLUGIN_H
#define KVEDGE_TENSORRT_PLUGIN_H

#include <NvInfer.h>

#include <memory>
#include <optional>
#include <vector>

#include "launch/device.h"

#if NV_TENSORRT_MAJOR * 100 + NV_TENSORRT_MINOR < 1003
#error "kvedge's plugin writes its pools in place (IPluginV3OneBuildV2): expected TensorRT 10.3 or newer"
#endif

namespace kvedge::trt {

using namespace launch;

constexpr const char* kVersion = "1";
// The default one: TensorRT's ONNX parser looks there, and loadLibrary registers there.
constexpr const char* kNamespace = "";

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuildV2,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  Plugin(std::shared_ptr<const Layer> layer, nvinfer1::TensorRTPhase phase);

  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  const char* getPluginName() const noexcept override;
  const char* getPluginVersion() const noexcept override;
  const char* getPluginNamespace() const noexcept override;

  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out, int32_t outputs) noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* types, int32_t outputs, const nvinfer1::DataType* input_types,
                             int32_t inputs) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* in, int32_t inputs, const nvinfer1::DimsExprs* shape_in,
                          int32_t shape_inputs, nvinfer1::DimsExprs* out, int32_t outputs,
                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors, int32_t inputs,
                                 int32_t outputs) noexcept override;
  int32_t getNbOutputs() const noexcept override;
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out, int32_t outputs) const noexcept override;
  int32_t getAliasedInput(int32_t output) noexcept override;

  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, int32_t inputs, const nvinfer1::PluginTensorDesc* out,
                        int32_t outputs) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in_of, const nvinfer1::PluginTensorDesc* out_of,
                  const void* const* in, void* const* out, void* workspace, cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  Values pointers(const void* const* in, void* const* out) const;
  void say_that_nothing_runs();

  std::shared_ptr<const Layer> layer_;
  nvinfer1::TensorRTPhase phase_;
  bool attached_ = false, said_ = false;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_ = {};
  std::shared_ptr<const Device> device_;
  std::optional<Plan> plan_;
  StepSizes step_ = {};
};

}  // namespace kvedge::trt
#endif
