// One PagedAttention node: its attributes, and one step of it on ONNX Runtime's tensors and threads.
#ifndef KVEDGE_CPU_OP_KERNEL_H
#define KVEDGE_CPU_OP_KERNEL_H

#include "kvedge/paged_attention.h"
#include "ort/ort_op.h"

namespace kvedge {

// Places of the op's tensors; plugins/schema.py lists the same.
enum Input : size_t {
  kQ, kK, kV, kCos, kSin, kHot, kPacked, kHotTable, kPackedTable, kContext, kNumNew, kSinkCos, kSinkSin,
  kBiasPage, kBiasFreqs, kBiasChannels, kInputs
};
enum Output : size_t { kOut, kHotOut, kPackedOut, kPagesRead, kOutputs };

class OpKernel {
 public:
  OpKernel(ort::Api api, const ort::KernelInfo* info, ort::ElementType hot_type);

  // Throws ort::Complaint or ort::Failed.
  void compute(ort::KernelContext* context) const;
  const ort::Api& api() const { return api_; }

 private:
  ort::Api api_;
  kvedge_shape attributes_;  // sizes known only from the tensors are 0 here
};

template <ort::ElementType HOT>
class PagedAttention : public OpKernel {
 public:
  static constexpr size_t kInputs = kvedge::kInputs, kOutputs = kvedge::kOutputs;
  static const char* name() { return "PagedAttention"; }

  static ort::Port input(size_t index) {
    switch (index) {
      case kHot: return {HOT, ort::kRequired};
      case kQ: return {ort::kFloat, ort::kRequired};
      case kK: case kV: case kCos: case kSin: case kSinkCos: case kSinkSin: case kBiasPage: case kBiasFreqs: return {ort::kFloat, ort::kOptional};
      case kPacked: case kPackedTable: case kBiasChannels: return {ort::kInt32, ort::kOptional};
      default: return {ort::kInt32, ort::kRequired};
    }
  }
  static ort::Port output(size_t index) {
    switch (index) {
      case kOut: return {ort::kFloat, ort::kRequired};
      case kHotOut: return {HOT, ort::kRequired};
      case kPackedOut: return {ort::kInt32, ort::kOptional};
      default: return {ort::kInt32, ort::kRequired};
    }
  }

  PagedAttention(ort::Api api, const ort::KernelInfo* info) : OpKernel(api, info, HOT) {}
};

}  // namespace kvedge

#endif
