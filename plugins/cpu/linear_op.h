// The operators BlockLinear, BlockGated and BlockEmbedding: products with weights in blocks, and single rows of such weights.
#ifndef KVEDGE_CPU_LINEAR_OP_H
#define KVEDGE_CPU_LINEAR_OP_H

#include "ort/ort_op.h"

namespace kvedge {

// What BlockLinear and BlockGated have in common: their first inputs are x float [..., inputs], weights uint8 [tiles,
// inputs / 32, block bytes], gamma float [inputs] and skip float [..., inputs], of which the last two may be absent; the
// outputs are y float [..., outputs] and, where it is wanted, sum float [..., inputs] (kvedge/linear.h).
class BlockProduct {
 public:
  static constexpr size_t kOutputs = 2;
  static ort::Port output(size_t index) { return {ort::kFloat, index == 1 ? ort::kOptional : ort::kRequired}; }
  const ort::Api& api() const { return api_; }

 protected:
  enum Input : size_t { kX, kWeights, kGamma, kSkip, kBias };
  static ort::Port input(size_t index);
  BlockProduct(ort::Api api, const ort::KernelInfo* info, const char* op, int32_t activation);
  void compute(ort::KernelContext* context, size_t inputs) const;

 private:
  ort::Api api_;
  const char* op_;
  int32_t bits_, outputs_, activation_;
  float epsilon_;
};

// y = x . weights + bias float [outputs], which may be absent
class BlockLinear : public BlockProduct {
 public:
  static constexpr size_t kInputs = kBias + 1;
  static const char* name() { return "BlockLinear"; }
  static ort::Port input(size_t index) { return BlockProduct::input(index); }

  BlockLinear(ort::Api api, const ort::KernelInfo* info);
  void compute(ort::KernelContext* context) const { BlockProduct::compute(context, kInputs); }
};

// y = activation(x . gate) * (x . up); weights hold the tiles of both.
class BlockGated : public BlockProduct {
 public:
  static constexpr size_t kInputs = kSkip + 1;
  static const char* name() { return "BlockGated"; }
  static ort::Port input(size_t index) { return BlockProduct::input(index); }

  BlockGated(ort::Api api, const ort::KernelInfo* info);
  void compute(ort::KernelContext* context) const { BlockProduct::compute(context, kInputs); }
};

// rows float [..., inputs] of weights, which belong to the ids int64 [...]
class BlockEmbedding {
 public:
  static constexpr size_t kInputs = 2, kOutputs = 1;
  static const char* name() { return "BlockEmbedding"; }
  static ort::Port input(size_t index);
  static ort::Port output(size_t) { return {ort::kFloat, ort::kRequired}; }

  BlockEmbedding(ort::Api api, const ort::KernelInfo* info);
  void compute(ort::KernelContext* context) const;
  const ort::Api& api() const { return api_; }

 private:
  ort::Api api_;
  int32_t bits_, outputs_;
};

}  // namespace kvedge
#endif
