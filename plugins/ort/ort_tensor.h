// Tensors and errors at the border to ONNX Runtime, in C++ terms.
#ifndef KVEDGE_ORT_ORT_TENSOR_H
#define KVEDGE_ORT_ORT_TENSOR_H

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
  const char* op = "";  // of which it is an input or output
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

// Trailing inputs that the node leaves out are not even counted: they are absent too.
Tensor read_input(const Api& api, const KernelContext* context, size_t index, const char* op, const char* name);

// The output of the shape that `like` has; absent when the node leaves it out.
Tensor make_output(const Api& api, KernelContext* context, size_t index, const Tensor& like);
Tensor make_output(const Api& api, KernelContext* context, size_t index, const char* name, ElementType type,
                   std::initializer_list<int64_t> dims);

[[noreturn]] void complain(const Tensor& tensor, const std::string& expected_and_got);

// An attribute from 0 to 2^31 - 1, or any number.
int32_t integer_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name);
float float_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name);
std::string text_attribute(const Api& api, const KernelInfo* info, const char* op, const char* name);

// What `read` copies: a text whose length it says when it is given no room, as Api::config does.
template <class Read>
std::string text_of(Read read) {
  size_t size = 0;
  require(read(nullptr, &size));
  std::string text(size, '\0');
  require(read(text.data(), &size));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

// Calls task(i) for 0 <= i < tasks on ONNX Runtime's threads, and waits for all of them. Threads take `batches` of them
// one by one; 0: each has one.
template <class Task>
void in_parallel(const Api& api, const KernelContext* context, int64_t tasks, Task task, int64_t batches = 0) {
  const auto one = [](void* body, size_t i) { (*static_cast<Task*>(body))(static_cast<int64_t>(i)); };
  if (tasks == 1) return task(0);
  if (tasks > 0) require(api.parallel_for(context, one, static_cast<size_t>(tasks), static_cast<size_t>(batches), &task));
}

// Complains unless the tensor is there and has this type and shape. `letters` names the shape: "[B, H, N, D]".
void expect(const Tensor& tensor, ElementType type, std::initializer_list<int64_t> dims, const char* letters);

}  // namespace kvedge::ort

#endif
