#include "ort_tensor.h"

#include <algorithm>
#include <limits>

namespace kvedge::ort {
namespace {

const char* type_name(ElementType type) {
  switch (type) {
    case kFloat: return "float";
    case kFloat16: return "float16";
    case kUint8: return "uint8";
    case kInt32: return "int32";
    case kInt64: return "int64";
    case kUndefined: break;
  }
  return "another type";
}

size_t type_bytes(ElementType type) {
  switch (type) {
    case kUint8: return 1;
    case kFloat16: return 2;
    case kInt64: return 8;
    default: return 4;
  }
}

std::string shape_text(const int64_t* dims, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += dims[i] == kAny ? "any" : std::to_string(dims[i]);
  }
  return text + "]";
}

void read_shape(const Api& api, const Value* value, Tensor* tensor) {
  const int64_t* dims = nullptr;
  require(api.shape(value, &tensor->type, &dims, &tensor->rank));
  if (tensor->rank > kMaxRank) {
    complain(*tensor, "expected at most " + std::to_string(kMaxRank) + " dimensions, got " + std::to_string(tensor->rank));
  }
  std::copy_n(dims, tensor->rank, tensor->dims);
}

}  // namespace

size_t Tensor::bytes() const {
  size_t count = type_bytes(type);
  for (size_t i = 0; i < rank; ++i) count *= static_cast<size_t>(dims[i]);
  return count;
}

std::string Tensor::describe() const {
  return present ? std::string(type_name(type)) + " " + shape_text(dims, rank) : std::string("nothing");
}

Tensor read_input(const Api& api, const KernelContext* context, size_t index, const char* op, const char* name) {
  Tensor tensor;
  tensor.op = op;
  tensor.name = name;
  size_t count = 0;
  require(api.input_count(context, &count));
  if (index >= count) return tensor;
  const Value* value = nullptr;
  require(api.input(context, index, &value));
  if (value == nullptr) return tensor;
  tensor.present = true;
  read_shape(api, value, &tensor);
  // The C API has no read-only access; the pools are meant to be written, the rest is left alone.
  require(api.data(const_cast<Value*>(value), &tensor.data));
  return tensor;
}

Tensor make_output(const Api& api, KernelContext* context, size_t index, const Tensor& like) {
  Tensor tensor = like;
  tensor.present = false;
  tensor.data = nullptr;  // not that of the other
  Value* value = nullptr;
  require(api.output(context, index, tensor.dims, tensor.rank, &value));
  if (value == nullptr) return tensor;
  tensor.present = true;
  require(api.data(value, &tensor.data));
  return tensor;
}

Tensor make_output(const Api& api, KernelContext* context, size_t index, const char* name, ElementType type,
                   std::initializer_list<int64_t> dims) {
  Tensor like;
  like.name = name;
  like.type = type;
  like.rank = dims.size();
  std::copy(dims.begin(), dims.end(), like.dims);
  return make_output(api, context, index, like);
}

void complain(const Tensor& tensor, const std::string& expected_and_got) {
  throw Complaint{std::string(tensor.op) + ": " + tensor.name + ": " + expected_and_got};
}

void expect(const Tensor& tensor, ElementType type, std::initializer_list<int64_t> dims, const char* letters) {
  bool same = tensor.present && tensor.type == type && tensor.rank == dims.size();
  for (size_t i = 0; same && i < tensor.rank; ++i) {
    const int64_t wanted = dims.begin()[i];
    same = wanted == kAny || wanted == tensor.dims[i];
  }
  if (same) return;
  complain(tensor, std::string("expected ") + type_name(type) + " " + letters + " = " +
                       shape_text(dims.begin(), dims.size()) + ", got " + tensor.describe());
}

namespace {

[[noreturn]] void bad_attribute(const char* op, const char* name, const std::string& got,
                                const char* expected = "a number from 0 to 2^31 - 1") {
  throw Complaint{std::string(op) + ": attribute " + name + ": expected " + expected + ", got " + got +
                  "; export the model again with this version of kvedge"};
}

template <class T>
T raw_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name) {
  T value = 0;
  if (Status* status = api.attribute(info, name, &value)) {
    api.release(status);
    bad_attribute(op, name, "none");
  }
  return value;
}

}  // namespace

int32_t integer_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name) {
  const auto value = raw_attribute<int64_t>(api, info, op, name);
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) bad_attribute(op, name, std::to_string(value));
  return static_cast<int32_t>(value);
}

float float_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name) {
  return raw_attribute<float>(api, info, op, name);
}

std::string text_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name) {
  try {
    return text_of([&](char* text, size_t* size) { return api.attribute(info, name, text, size); });
  } catch (const Failed& failed) {
    api.release(failed.status);
    bad_attribute(op, name, "none", "a text");
  }
}

}  // namespace kvedge::ort
