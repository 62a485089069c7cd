// The compiled kernels of a model, as the exporter leaves them: one file for each form of layer and each chip.
#ifndef KVEDGE_ORT_CUDA_KERNELS_FOLDER_H
#define KVEDGE_ORT_CUDA_KERNELS_FOLDER_H

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace kvedge::ort_cuda {

// As kvedge/targets/names.py has it; a test compares both.
std::string kernels_name(int64_t form, int sm);

class KernelsFolder {
 public:
  explicit KernelsFolder(std::string path) : path_(std::move(path)) {}

  // A bundle's bytes, read once for all layers that hold them. Throws Failure where there is none for the chip.
  std::shared_ptr<const std::string> read(int64_t form, int sm);

 private:
  std::string path_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const std::string>> known_;
};

}  // namespace kvedge::ort_cuda
#endif
