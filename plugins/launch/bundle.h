// The kernels of a layer and a chip, as `python -m kvedge.plugins.cuda.compile` writes them.
#ifndef KVEDGE_LAUNCH_BUNDLE_H
#define KVEDGE_LAUNCH_BUNDLE_H

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"

namespace kvedge::launch {

struct Kernel {
  std::string name, symbol, cuda;  // cuda: version of the toolkit that made the code
  std::vector<Argument> arguments;
  std::map<std::string, double> constants;
  int sm = 0, warps = 0, shared = 0;
  bool hot_is_half = false;
  std::string_view code;

  int constant(const std::string& constant_name) const;
};

class Bundle {
 public:
  // Throws Failure where that is no bundle, or one whose kernels take what this library does not know.
  explicit Bundle(std::shared_ptr<const std::string> bytes);

  const std::string& bytes() const { return *bytes_; }
  const std::map<std::string, Kernel>& kernels() const { return kernels_; }
  const Kernel& kernel(const std::string& name) const;
  std::string_view dct() const { return dct_; }
  int pages_a_split() const { return pages_a_split_; }
  int most_decoded() const { return most_decoded_; }
  int alignment() const { return alignment_; }  // bytes, of every pointer

 private:
  std::shared_ptr<const std::string> bytes_;
  std::map<std::string, Kernel> kernels_;
  std::string_view dct_;
  int pages_a_split_ = 0, most_decoded_ = 0, alignment_ = 0;
};

}  // namespace kvedge::launch
#endif
