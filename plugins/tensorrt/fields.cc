#include "fields.h"

#include <limits>

#include "launch/failure.h"

namespace kvedge::trt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

constexpr const char *kInputsField = "inputs", *kKernelsField = "kernels";

const PluginField& field(const PluginFieldCollection& fields, const char* name) {
  for (int32_t i = 0; i < fields.nbFields; ++i) {
    const PluginField& one = fields.fields[i];
    if (one.name == nullptr || std::string_view(one.name) != name) continue;
    if (one.data == nullptr || one.length < 1) throw Failure(std::string("field ") + name, "a value", "none");
    return one;
  }
  throw Failure(std::string("field ") + name, "it among the fields", "none");
}

[[noreturn]] void refuse_type(const PluginField& one, const char* expected) {
  throw Failure(std::string("field ") + one.name, expected,
                std::to_string(one.length) + " of type " + std::to_string(static_cast<int32_t>(one.type)));
}

int32_t integer(const PluginFieldCollection& fields, const char* name) {
  const PluginField& one = field(fields, name);
  if (one.length != 1) refuse_type(one, "one integer");
  if (one.type == PluginFieldType::kINT32) return *static_cast<const int32_t*>(one.data);
  if (one.type != PluginFieldType::kINT64) refuse_type(one, "one integer");
  const int64_t value = *static_cast<const int64_t*>(one.data);
  if (value != static_cast<int32_t>(value)) {
    throw Failure(std::string("field ") + name, "a value of 32 bits", std::to_string(value));
  }
  return static_cast<int32_t>(value);
}

float real(const PluginFieldCollection& fields, const char* name) {
  const PluginField& one = field(fields, name);
  if (one.length == 1 && one.type == PluginFieldType::kFLOAT32) return *static_cast<const float*>(one.data);
  if (one.length == 1 && one.type == PluginFieldType::kFLOAT64) {
    return static_cast<float>(*static_cast<const double*>(one.data));
  }
  refuse_type(one, "one real number");
}

std::string bytes(const PluginFieldCollection& fields, const char* name) {
  const PluginField& one = field(fields, name);
  if (one.type != PluginFieldType::kCHAR && one.type != PluginFieldType::kINT8) refuse_type(one, "bytes");
  return {static_cast<const char*>(one.data), static_cast<size_t>(one.length)};
}

PluginField bytes_field(const char* name, const std::string* value) {
  if (value == nullptr) return {name, nullptr, PluginFieldType::kCHAR, 1};
  if (value->size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw Failure(std::string("field ") + name, "less than 2 GiB", std::to_string(value->size()) + " bytes");
  }
  return {name, value->data(), PluginFieldType::kCHAR, static_cast<int32_t>(value->size())};
}

}  // namespace

std::shared_ptr<const Layer> read_fields(const PluginFieldCollection& fields) {
  Attributes attributes = {};
  for (const IntegerAttribute& one : kIntegerAttributes) attributes.*one.value = integer(fields, one.name);
  for (const FloatAttribute& one : kFloatAttributes) attributes.*one.value = real(fields, one.name);
  std::string inputs = bytes(fields, kInputsField);
  while (!inputs.empty() && inputs.back() == '\0') inputs.pop_back();
  return std::make_shared<const Layer>(attributes, std::move(inputs),
                                       std::make_shared<const std::string>(bytes(fields, kKernelsField)));
}

std::vector<PluginField> fields_of(const Layer* layer) {
  const Attributes* const of = layer ? &layer->attributes : nullptr;
  std::vector<PluginField> fields;
  for (const IntegerAttribute& one : kIntegerAttributes) {
    fields.emplace_back(one.name, of ? &(of->*one.value) : nullptr, PluginFieldType::kINT32, 1);
  }
  for (const FloatAttribute& one : kFloatAttributes) {
    fields.emplace_back(one.name, of ? &(of->*one.value) : nullptr, PluginFieldType::kFLOAT32, 1);
  }
  fields.push_back(bytes_field(kInputsField, layer ? &layer->inputs : nullptr));
  fields.push_back(bytes_field(kKernelsField, layer ? layer->kernels.get() : nullptr));
  return fields;
}

}  // namespace kvedge::trt
