#include "shapes.h"

#include "failure.h"
#include "kvedge/layout.h"

namespace kvedge::trt {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;

constexpr int64_t kAny = -1;

std::string text_of(const int64_t* sizes, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) {
    text += (i ? ", " : "") + (sizes[i] == kAny ? std::string("any") : std::to_string(sizes[i]));
  }
  return text + "]";
}

std::vector<int64_t> expected_of(const Layer& layer, Argument tensor, int64_t batch, int64_t tokens) {
  const Attributes& of = layer.attributes;
  switch (tensor) {
    case kQ: return {batch, of.heads, tokens, of.head_dim};
    case kK:
    case kV: return {batch, of.kv_heads, tokens, of.head_dim};
    case kHot: return {kAny, 2, of.kv_heads, of.page, of.head_dim};
    case kPacked:
      return {kAny, PackedLayout(of.head_dim, of.page, of.k_bits, of.v_bits).page_words(of.kv_heads)};
    case kHotTable:
    case kPackedTable: return {batch, kAny};
    case kSinkCos:
    case kSinkSin: return {batch, tokens, layer.rotary_pairs};
    case kBiasPage: return {of.kv_heads, 2 * layer.bias_pairs, of.page};
    case kBiasFreqs: return {layer.bias_pairs};
    case kBiasChannels: return {2 * layer.bias_pairs};
    case kOut: return {batch, tokens, int64_t{of.heads} * of.head_dim};
    default: return {batch};  // context, num_new, pages_read
  }
}

void check_shape(const std::string& name, const std::vector<int64_t>& expected, const Dims& got) {
  bool fits = got.nbDims == static_cast<int32_t>(expected.size());
  for (size_t i = 0; fits && i < expected.size(); ++i) {
    fits = expected[i] == kAny || got.d[i] == kAny || got.d[i] == expected[i];
  }
  if (fits) return;
  const int64_t none = 0;
  throw Failure(name, text_of(expected.data(), expected.size()),
                text_of(got.nbDims > 0 ? got.d : &none, got.nbDims > 0 ? static_cast<size_t>(got.nbDims) : 0));
}

}  // namespace

DataType type_of(const Layer& layer, Argument tensor) {
  const std::string_view type = kArgumentNames[tensor].type;
  if (tensor == kHot) return layer.bundle.kernel("append").hot_is_half ? DataType::kHALF : DataType::kFLOAT;
  return type == kInts ? DataType::kINT32 : DataType::kFLOAT;
}

StepSizes sizes_of(const Layer& layer, const std::vector<Dims>& inputs) {
  const auto size = [&](Argument tensor, int axis) {
    const int index = layer.tensors.index(tensor);
    return index < 0 ? 0 : static_cast<int32_t>(inputs.at(static_cast<size_t>(index)).d[axis]);
  };
  return {size(kQ, 0), size(kQ, 2), size(kHotTable, 1), size(kPackedTable, 1)};
}

void check_count(const Layer& layer, int32_t inputs, int32_t outputs) {
  const auto check = [](const char* name, size_t expected, int32_t got) {
    if (expected != static_cast<size_t>(got)) throw Failure(name, std::to_string(expected), std::to_string(got));
  };
  check("inputs", layer.tensors.inputs().size(), inputs);
  check("outputs", layer.tensors.outputs().size(), outputs);
}

void check_shapes(const Layer& layer, const std::vector<Dims>& tensors) {
  const Dims& q = tensors.at(0);
  if (q.nbDims != 4) check_shape("q", expected_of(layer, kQ, kAny, kAny), q);
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_shape(layer.tensors.name(i), expected_of(layer, layer.tensors.argument(i), q.d[0], q.d[2]), tensors[i]);
  }
  const Attributes& of = layer.attributes;
  const int64_t sinks = (of.sinks + of.page - 1) / of.page;
  const int64_t slots = tensors.at(static_cast<size_t>(layer.tensors.index(kHotTable))).d[1];
  if (slots != kAny && slots <= sinks) {
    const std::string expected = "more than " + std::to_string(sinks) + " columns, the sinks' pages";
    throw Failure("hot_table", expected, std::to_string(slots));
  }
}

}  // namespace kvedge::trt
