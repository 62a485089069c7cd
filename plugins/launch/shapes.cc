#include "shapes.h"

#include "failure.h"
#include "kvedge/layout.h"

namespace kvedge::launch {
namespace {

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + (shape[i] == kAny ? std::string("any") : std::to_string(shape[i]));
  }
  return text + "]";
}

void check_shape(const std::string& name, const Shape& expected, const Shape& got) {
  bool fits = got.size() == expected.size();
  for (size_t i = 0; fits && i < expected.size(); ++i) {
    fits = expected[i] == kAny || got[i] == kAny || got[i] == expected[i];
  }
  if (!fits) throw Failure(name, text_of(expected), text_of(got));
}

}  // namespace

const char* name_of(Type type) {
  switch (type) {
    case Type::kFloat32: return "float32";
    case Type::kFloat16: return "float16";
    default: return "int32";
  }
}

Type type_of(const Layer& layer, Argument tensor) {
  if (tensor == kHot) return layer.bundle.kernel("append").hot_is_half ? Type::kFloat16 : Type::kFloat32;
  return kArgumentNames[tensor].type == kInts ? Type::kInt32 : Type::kFloat32;
}

Shape shape_of(const Layer& layer, Argument tensor, int64_t batch, int64_t tokens) {
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

StepSizes sizes_of(const Layer& layer, const std::vector<Shape>& inputs) {
  const auto size = [&](Argument tensor, size_t axis) {
    const int index = layer.tensors.index(tensor);
    return index < 0 ? 0 : static_cast<int32_t>(inputs.at(static_cast<size_t>(index)).at(axis));
  };
  return {size(kQ, 0), size(kQ, 2), size(kHotTable, 1), size(kPackedTable, 1)};
}

void check_count(const Layer& layer, size_t inputs, size_t outputs) {
  const auto check = [](const char* name, size_t expected, size_t got) {
    if (expected != got) throw Failure(name, std::to_string(expected), std::to_string(got));
  };
  check("inputs", layer.tensors.inputs().size(), inputs);
  check("outputs", layer.tensors.outputs().size(), outputs);
}

void check_shapes(const Layer& layer, const std::vector<Shape>& tensors) {
  const Shape& q = tensors.at(0);
  if (q.size() != 4) check_shape("q", shape_of(layer, kQ, kAny, kAny), q);
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_shape(layer.tensors.name(i), shape_of(layer, layer.tensors.argument(i), q[0], q[2]), tensors[i]);
  }
  const Attributes& of = layer.attributes;
  const int64_t sinks = (of.sinks + of.page - 1) / of.page;
  const int64_t slots = tensors.at(static_cast<size_t>(layer.tensors.index(kHotTable)))[1];
  if (slots != kAny && slots <= sinks) {
    const std::string expected = "more than " + std::to_string(sinks) + " columns, the sinks' pages";
    throw Failure("hot_table", expected, std::to_string(slots));
  }
}

}  // namespace kvedge::launch
