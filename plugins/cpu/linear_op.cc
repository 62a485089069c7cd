#include "linear_op.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kvedge/linear.h"
#include "scratch.h"

namespace kvedge {
namespace {

using ort::Tensor;

int32_t read_bits(const ort::Api& api, const ort::KernelInfo* info, const char* op) {
  const int32_t bits = ort::integer_attribute(api, info, op, "bits");
  if (bits != 4 && bits != 8)
    throw ort::Complaint{std::string(op) + ": attribute bits: expected 4 or 8, got " + std::to_string(bits)};
  return bits;
}

int64_t elements(const Tensor& tensor, size_t axes) {
  int64_t count = 1;
  for (size_t i = 0; i < axes; ++i) count *= tensor.dims[i];
  return count;
}

void check_weights(const Tensor& weights, int32_t bits, int64_t tiles, int64_t blocks) {
  ort::expect(weights, ort::kUint8, {tiles, blocks, block_bytes(bits)}, "[outputs / 16, inputs / 32, block]");
}

void check_skip(const Tensor& skip, const Tensor& x, const Tensor& gamma) {
  if (!gamma.present) ort::complain(skip, "expected none without gamma, got " + skip.describe());
  if (skip.rank != x.rank || !std::equal(x.dims, x.dims + x.rank, skip.dims))
    ort::complain(skip, "expected the shape of x, got " + skip.describe() + "; x is " + x.describe());
}

int32_t read_activation(const ort::Api& api, const ort::KernelInfo* info, const char* op) {
  char text[16] = "";
  size_t size = sizeof(text);
  if (ort::Status* status = api.attribute(info, "activation", text, &size)) api.release(status);
  const std::string activation(text);
  if (activation == "silu") return KVEDGE_SILU;
  if (activation == "gelu_tanh") return KVEDGE_GELU_TANH;
  throw ort::Complaint{std::string(op) + ": attribute activation: expected silu or gelu_tanh, got " + activation};
}

thread_local Aligned<float> scratch_floats;

}  // namespace

ort::Port BlockProduct::input(size_t index) {
  if (index == kWeights) return {ort::kUint8, ort::kRequired};
  return {ort::kFloat, index == kX ? ort::kRequired : ort::kOptional};
}

BlockLinear::BlockLinear(ort::Api api, const ort::KernelInfo* info)
    : BlockProduct(api, info, name(), KVEDGE_NO_ACTIVATION) {}

BlockGated::BlockGated(ort::Api api, const ort::KernelInfo* info)
    : BlockProduct(api, info, name(), read_activation(api, info, name())) {}

BlockProduct::BlockProduct(ort::Api api, const ort::KernelInfo* info, const char* op, int32_t activation)
    : api_(api),
      op_(op),
      bits_(read_bits(api, info, op)),
      outputs_(ort::integer_attribute(api, info, op, "outputs")),
      activation_(activation),
      epsilon_(ort::float_attribute(api, info, op, "epsilon")) {
  if (activation != KVEDGE_NO_ACTIVATION && outputs_ % kTile != 0)
    throw ort::Complaint{std::string(op) + ": attribute outputs: expected a multiple of 16, got " + std::to_string(outputs_)};
}

void BlockProduct::compute(ort::KernelContext* context, size_t inputs) const {
  const Tensor x = ort::read_input(api_, context, kX, op_, "x");
  const Tensor weights = ort::read_input(api_, context, kWeights, op_, "weights");
  const Tensor gamma = ort::read_input(api_, context, kGamma, op_, "gamma");
  const Tensor skip = ort::read_input(api_, context, kSkip, op_, "skip");
  const Tensor bias = inputs <= kBias ? Tensor() : ort::read_input(api_, context, kBias, op_, "bias");
  const size_t last = x.rank - 1;
  if (x.rank == 0 || x.dims[last] % kBlock != 0 || x.dims[last] == 0)
    ort::complain(x, "expected [..., a multiple of 32], got " + x.describe());
  const int64_t matrices = activation_ == KVEDGE_NO_ACTIVATION ? 1 : 2;
  check_weights(weights, bits_, matrices * tiles_of(outputs_), x.dims[last] / kBlock);
  if (bias.present) ort::expect(bias, ort::kFloat, {outputs_}, "[outputs]");
  if (gamma.present) ort::expect(gamma, ort::kFloat, {x.dims[last]}, "[inputs]");
  if (skip.present) check_skip(skip, x, gamma);
  Tensor y = x;
  y.dims[last] = outputs_;
  y = ort::make_output(api_, context, 0, y);
  Tensor sum = gamma.present ? ort::make_output(api_, context, 1, x) : Tensor();
  const kvedge_linear linear = {weights.as<const uint8_t>(), x.as<const float>(), bias.as<const float>(), y.as<float>(),
                                gamma.as<const float>(), skip.as<const float>(), sum.as<float>(),
                                elements(x, last), x.dims[last], outputs_, bits_, activation_, epsilon_};
  constexpr int64_t kFloat = sizeof(float);
  void* scratch = grown(scratch_floats, (kvedge_linear_scratch(&linear) + kFloat - 1) / kFloat);
  ort::in_parallel(api_, context, kvedge_linear_quantize_tasks(&linear),
                   [&](int64_t task) { kvedge_linear_quantize_task(&linear, scratch, task); });
  ort::in_parallel(api_, context, kvedge_linear_product_tasks(&linear),
                   [&](int64_t task) { kvedge_linear_product_task(&linear, scratch, task); });
}

ort::Port BlockEmbedding::input(size_t index) { return {index == 0 ? ort::kInt64 : ort::kUint8, ort::kRequired}; }

BlockEmbedding::BlockEmbedding(ort::Api api, const ort::KernelInfo* info)
    : api_(api), bits_(read_bits(api, info, name())), outputs_(ort::integer_attribute(api, info, name(), "outputs")) {}

void BlockEmbedding::compute(ort::KernelContext* context) const {
  const Tensor ids = ort::read_input(api_, context, 0, name(), "ids");
  const Tensor weights = ort::read_input(api_, context, 1, name(), "weights");
  const int64_t blocks = weights.rank == 3 ? weights.dims[1] : 0, inputs = blocks * kBlock;
  check_weights(weights, bits_, tiles_of(outputs_), blocks);
  Tensor rows = ids;
  if (ids.rank + 1 > ort::kMaxRank) ort::complain(ids, "expected fewer dimensions, got " + ids.describe());
  rows.type = ort::kFloat;
  rows.dims[rows.rank++] = inputs;
  rows = ort::make_output(api_, context, 0, rows);
  const int64_t* id = ids.as<const int64_t>();
  for (int64_t i = 0; i < elements(ids, ids.rank); ++i) {
    if (id[i] < 0 || id[i] >= outputs_)
      ort::complain(ids, "expected 0 to " + std::to_string(outputs_ - 1) + ", got " + std::to_string(id[i]));
    kvedge_linear_row(weights.as<const uint8_t>(), bits_, inputs, id[i], rows.as<float>() + i * inputs);
  }
}

}  // namespace kvedge
