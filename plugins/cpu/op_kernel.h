// One PagedAttention node: its attributes, and one step of it on ONNX Runtime's tensors and threads.
#ifndef KVEDGE_CPU_OP_KERNEL_H
#define KVEDGE_CPU_OP_KERNEL_H

#include "kvedge/paged_attention.h"
#include "ort_api.h"

namespace kvedge {

// Places of the op's tensors; plugins/schema.py lists the same.
enum Input : size_t {
  kQ, kK, kV, kHot, kPacked, kHotTable, kPackedTable, kContext, kNumNew, kSinkCos, kSinkSin,
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

}  // namespace kvedge

#endif
