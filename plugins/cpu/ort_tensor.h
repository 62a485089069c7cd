// Tensors and errors at the border to ONNX Runtime, in C++ terms.
#ifndef KVEDGE_CPU_ORT_TENSOR_H
#define KVEDGE_CPU_ORT_TENSOR_H

#include <cstdint>
#include <initializer_list>
#include <string>

#include "ort_api.h"

namespace kvedge::ort {

// A complaint of ours: what, expected, got. It becomes a Python exception.
struct Complaint {
  std::string message;
};

// An error that ONNX Runtime reported; the holder hands it back or releases it.
struct Failed {
  Status* status;
};

inline void require(Status* status) {
  if (status != nullptr) throw Failed{status};
}

constexpr size_t kMaxRank = 8;

// A tensor as found. Absent optional tensors have rank 0 and no data.
struct Tensor {
  const char* name = "";
  bool present = false;
  void* data = nullptr;
  ElementType type = kFloat;
  size_t rank = 0;
  int64_t dims[kMaxRank] = {};

  template <class T>
  T* as() const { return static_cast<T*>(data); }
  size_t bytes() const;
  std::string describe() const;
};

// A dimension that may have any size, in an expected shape.
constexpr int64_t kAny = -1;

Tensor read_input(const Api& api, const KernelContext* context, size_t index, const char* name);

// The output of this shape; absent when the node leaves it out.
Tensor make_output(const Api& api, KernelContext* context, size_t index, const char* name, ElementType type,
                   std::initializer_list<int64_t> dims);

// Complains unless the tensor is there and has this type and shape. `letters` names the shape: "[B, H, N, D]".
void expect(const Tensor& tensor, ElementType type, std::initializer_list<int64_t> dims, const char* letters);

}  // namespace kvedge::ort

#endif
