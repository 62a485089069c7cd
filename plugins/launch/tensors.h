// Inputs and outputs of the op, as kvedge/plugins/schema.py describes them. A layer's node has some of the inputs, in
// this order; its attribute `inputs` names them, because TensorRT cannot leave one out in the middle.
#ifndef KVEDGE_LAUNCH_TENSORS_H
#define KVEDGE_LAUNCH_TENSORS_H

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "arguments.h"

namespace kvedge::launch {

// What an output shares its buffer with; kArguments: nothing.
struct Output {
  const char* name;
  Argument argument, aliased;
};

constexpr const char* kSchemaInputs[] = {"q", "k", "v", "cos", "sin", "hot", "packed", "hot_table", "packed_table",
    "context", "num_new", "sink_cos", "sink_sin", "bias_page", "bias_freqs", "bias_channels"};
constexpr Output kSchemaOutputs[] = {
    {"out", kOut, kArguments}, {"hot_out", kHot, kHot}, {"packed_out", kPacked, kPacked},
    {"pages_read", kPagesRead, kArguments}};

class Tensors {
 public:
  // Names apart by commas. Throws Failure where one is unknown, out of order, missing or not for these kernels.
  explicit Tensors(const std::string& names);

  const std::vector<Argument>& inputs() const { return inputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  bool has(Argument input) const { return index_[input] >= 0; }
  int index(Argument input) const { return index_[input]; }  // -1: absent

  // Name of input or output `position`, inputs first.
  std::string name(size_t position) const;
  Argument argument(size_t position) const;

 private:
  void add(const std::string& name);

  std::vector<Argument> inputs_;
  std::vector<Output> outputs_;
  std::array<int, kArguments> index_;
  size_t next_ = 0;
};

}  // namespace kvedge::launch
#endif
