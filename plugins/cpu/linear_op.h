// The operators BlockLinear, BlockGated and BlockEmbedding: products with weights in blocks, and single rows of such weights.
#ifndef KVEDGE_CPU_LINEAR_OP_H
#define KVEDGE_CPU_LINEAR_OP_H

#include "ort_op.h"

namespace kvedge {

// What BlockLinear and BlockGated have in common.
class BlockProduct {
 public:
  static constexpr size_t kOutputs = 1;
  static ort::Port output(size_t) { return {ort::kFloat, ort::kRequired}; }
  const ort::Api& api() const { return api_; }

 protected:
  BlockProduct(ort::Api api, const ort::KernelInfo* info, const char* op, int32_t activation);
  void compute(ort::KernelContext* context, size_t inputs) const;

 private:
  ort::Api api_;
  const char* op_;
  int32_t bits_, outputs_, activation_;
};

// y float [..., outputs] = x float [..., inputs] . weights uint8 [tiles, inputs / 32, block bytes] + bias float [outputs]
class BlockLinear : public BlockProduct {
 public:
  static constexpr size_t kInputs = 3;
  static const char* name() { return "BlockLinear"; }
  static ort::Port input(size_t index);

  BlockLinear(ort::Api api, const ort::KernelInfo* info);
  void compute(ort::KernelContext* context) const { BlockProduct::compute(context, kInputs); }
};

// y float [..., outputs] = activation(x . gate) * (x . up); weights hold the tiles of both.
class BlockGated : public BlockProduct {
 public:
  static constexpr size_t kInputs = 2;
  static const char* name() { return "BlockGated"; }
  static ort::Port input(size_t index);

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
