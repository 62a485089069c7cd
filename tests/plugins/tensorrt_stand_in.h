// Stand-ins for what TensorRT would bring: a registry, a logger, and expressions of sizes. They show that the plugin
// keeps to TensorRT's headers, not that TensorRT takes it.
#ifndef KVEDGE_TENSORRT_STAND_IN_H
#define KVEDGE_TENSORRT_STAND_IN_H

#include <NvInfer.h>

#include <deque>
#include <map>
#include <sstream>
#include <string>
#include <vector>

extern "C" nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count);
extern "C" void setLoggerFinder(nvinfer1::ILoggerFinder* finder);

namespace stand_in {

// argv as name=value.
struct Options : std::map<std::string, std::string> {
  Options(int count, char** words) {
    for (int i = 2; i < count; ++i) {
      const std::string word = words[i];
      (*this)[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
  }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    return count(name) ? at(name) : otherwise;
  }
  std::vector<std::string> list(const std::string& name) const {
    std::vector<std::string> parts;
    std::istringstream all(text(name));
    for (std::string part; std::getline(all, part, ',');) parts.push_back(part);
    return parts;
  }
};

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out + "\"";
}

template <typename Items>
std::string listed(const Items& items) {
  std::string out = "[";
  for (const auto& item : items) out += (out.size() > 1 ? ", " : "") + item;
  return out + "]";
}

struct Logger final : nvinfer1::ILogger, nvinfer1::ILoggerFinder {
  std::vector<std::string> messages;

  void log(Severity, const char* message) noexcept override { messages.push_back(quoted(message)); }
  nvinfer1::ILogger* findLogger() override { return this; }
};

// Finds creators as TensorRT's registry does: by name, version and namespace.
class Registry {
 public:
  Registry() {
    int32_t count = 0;
    nvinfer1::IPluginCreatorInterface* const* const creators = getCreators(count);
    for (int32_t i = 0; i < count; ++i) creators_.push_back(static_cast<nvinfer1::IPluginCreatorV3One*>(creators[i]));
  }
  nvinfer1::IPluginCreatorV3One* find(const std::string& name, const std::string& version,
                                      const std::string& space) const {
    for (auto* creator : creators_) {
      if (name == creator->getPluginName() && version == creator->getPluginVersion() &&
          space == creator->getPluginNamespace()) {
        return creator;
      }
    }
    return nullptr;
  }

 private:
  std::vector<nvinfer1::IPluginCreatorV3One*> creators_;
};

// A size that is known.
class Size final : public nvinfer1::IDimensionExpr, nvinfer1::apiv::VDimensionExpr {
 public:
  explicit Size(int64_t value) : value_(value) { mImpl = this; }
  bool isConstant() const noexcept override { return true; }
  int64_t getConstantValue() const noexcept override { return value_; }
  bool isSizeTensor() const noexcept override { return false; }

 private:
  int64_t value_;
};

class Sizes final : public nvinfer1::IExprBuilder, nvinfer1::apiv::VExprBuilder {
 public:
  Sizes() { mImpl = this; }
  const nvinfer1::IDimensionExpr* constant(int64_t value) noexcept override { return &sizes_.emplace_back(value); }
  const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation, const nvinfer1::IDimensionExpr&,
                                            const nvinfer1::IDimensionExpr&) noexcept override {
    return nullptr;
  }
  const nvinfer1::IDimensionExpr* declareSizeTensor(int32_t, const nvinfer1::IDimensionExpr&,
                                                    const nvinfer1::IDimensionExpr&) noexcept override {
    return nullptr;
  }

 private:
  std::deque<Size> sizes_;
};

}  // namespace stand_in
#endif
