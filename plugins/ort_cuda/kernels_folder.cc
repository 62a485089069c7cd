#include "kernels_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "launch/failure.h"

namespace kvedge::ort_cuda {
namespace {

constexpr const char* kEnd = ".safetensors";

std::string start_of(int64_t form) { return "kernels." + std::to_string(form) + ".sm"; }

// Chips that there are kernels of a form for, as people read them.
std::string chips_in(const std::filesystem::path& folder, int64_t form) {
  std::set<int> chips;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string(), start = start_of(form);
    if (name.compare(0, start.size(), start) != 0) continue;
    const std::string sm = name.substr(start.size(), name.find('.', start.size()) - start.size());
    if (!sm.empty() && sm.size() < 5 && std::all_of(sm.begin(), sm.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      chips.insert(std::stoi(sm));
    }
  }
  std::string text;
  for (const int sm : chips) text += (text.empty() ? "sm_" : ", sm_") + std::to_string(sm);
  return text;
}

}  // namespace

std::string kernels_name(int64_t form, int sm) { return start_of(form) + std::to_string(sm) + kEnd; }

std::shared_ptr<const std::string> KernelsFolder::read(int64_t form, int sm) {
  const std::string name = kernels_name(form, sm);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (auto known = known_[name].lock()) return known;
  const auto path = std::filesystem::path(path_) / name;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const std::string chips = chips_in(path_, form);
    throw launch::Failure(path.string(), "kernels for this GPU, sm_" + std::to_string(sm),
                          (chips.empty() ? "none" : "some for " + chips + " only") +
                              "; export the model again, with --sm " + std::to_string(sm) +
                              " and a --kv that it reads");
  }
  auto bytes = std::make_shared<const std::string>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  known_[name] = bytes;
  return bytes;
}

}  // namespace kvedge::ort_cuda
