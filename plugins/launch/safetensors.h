// The tensors of a safetensors file in memory, as bytes, and its metadata: 8 bytes of the header's size, the header
// as JSON, the data.
#ifndef KVEDGE_LAUNCH_SAFETENSORS_H
#define KVEDGE_LAUNCH_SAFETENSORS_H

#include <map>
#include <string>
#include <string_view>

#include "json.h"

namespace kvedge::launch {

class Safetensors {
 public:
  // Throws Failure where that is none, or a tensor lies outside. The bytes must outlive it.
  Safetensors(std::string_view bytes, std::string where);

  const std::map<std::string, std::string_view>& tensors() const { return tensors_; }
  const std::string& metadata(const std::string& name) const;

 private:
  std::string where_;
  std::map<std::string, std::string_view> tensors_;
  Json metadata_;
};

}  // namespace kvedge::launch
#endif
