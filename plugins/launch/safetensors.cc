#include "safetensors.h"

#include <cstdint>

#include "failure.h"

namespace kvedge::launch {
namespace {

constexpr size_t kSizeBytes = 8;

std::string_view header_of(std::string_view bytes, const std::string& where) {
  const std::string got = std::to_string(bytes.size()) + " bytes";
  if (bytes.size() < kSizeBytes) throw Failure(where, "a safetensors file", got);
  uint64_t size = 0;
  for (size_t i = kSizeBytes; i-- > 0;) size = size << 8 | static_cast<unsigned char>(bytes[i]);
  if (size > bytes.size() - kSizeBytes) {
    throw Failure(where, "a safetensors file with a header of " + std::to_string(size) + " bytes", got);
  }
  return bytes.substr(kSizeBytes, size);
}

std::string_view tensor_of(const Json& entry, std::string_view data, const std::string& where) {
  const auto& offsets = entry.at("data_offsets", Json::Kind::kList, where).items;
  const double size = static_cast<double>(data.size());
  if (offsets.size() != 2 || !(0 <= offsets[0].number && offsets[0].number <= offsets[1].number) ||
      offsets[1].number > size) {
    throw Failure(where, "data within " + std::to_string(data.size()) + " bytes", "some outside");
  }
  const auto first = static_cast<size_t>(offsets[0].number), last = static_cast<size_t>(offsets[1].number);
  return data.substr(first, last - first);
}

}  // namespace

Safetensors::Safetensors(std::string_view bytes, std::string where) : where_(std::move(where)) {
  const std::string_view header = header_of(bytes, where_), data = bytes.substr(kSizeBytes + header.size());
  const Json root = parse_json(header, where_);
  for (const auto& [name, entry] : root.members) {
    if (name == "__metadata__") metadata_ = entry;
    else tensors_[name] = tensor_of(entry, data, where_ + ", " + name);
  }
}

const std::string& Safetensors::metadata(const std::string& name) const { return metadata_.text_at(name, where_); }

}  // namespace kvedge::launch
