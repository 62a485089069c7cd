// What TensorRT looks for in a library of plugins (IPluginRegistry::loadLibrary, trtexec --dynamicPlugins).
#include "fields.h"
#include "launch/failure.h"
#include "log.h"
#include "plugin.h"

namespace kvedge::trt {
namespace {

using namespace nvinfer1;

class Creator final : public IPluginCreatorV3One {
 public:
  Creator() : fields_(fields_of(nullptr)), collection_{static_cast<int32_t>(fields_.size()), fields_.data()} {}

  IPluginV3* createPlugin(const char* node, const PluginFieldCollection* fields,
                          TensorRTPhase phase) noexcept override {
    return guarded<IPluginV3*>(nullptr, [&] {
      if (fields == nullptr) throw Failure(node ? node : "a node", "fields", "none");
      return new Plugin(read_fields(*fields), phase);
    });
  }
  const PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return kName; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

 private:
  std::vector<PluginField> fields_;
  PluginFieldCollection collection_;
};

}  // namespace
}  // namespace kvedge::trt

#define KVEDGE_PLUGIN_API __attribute__((visibility("default")))

extern "C" KVEDGE_PLUGIN_API nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
  static kvedge::trt::Creator creator;
  static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
  count = 1;
  return creators;
}

extern "C" KVEDGE_PLUGIN_API void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  kvedge::trt::set_logger_finder(finder);
}

// What it was built against, such as 100300: another TensorRT may call it in another way, without noticing.
extern "C" KVEDGE_PLUGIN_API int32_t kvedge_tensorrt_version() {
  return 10000 * NV_TENSORRT_MAJOR + 100 * NV_TENSORRT_MINOR + NV_TENSORRT_PATCH;
}
