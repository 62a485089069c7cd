// Scratch that a thread keeps: it grows to the largest step and stays, so that nothing is allocated in the long run.
#ifndef KVEDGE_CPU_SCRATCH_H
#define KVEDGE_CPU_SCRATCH_H

#include <cstdint>
#include <vector>

namespace kvedge {

constexpr int64_t kLine = 64;  // bytes of a cache line, where what is returned begins

// An array that begins where a cache line does.
template <typename T>
class Aligned {
 public:
  explicit Aligned(int64_t count = 0) { grow(count); }

  // What was there is lost.
  void grow(int64_t count) {
    if (int64_t(kept_.size()) < count + kRoom) kept_.assign(count + kRoom, T());
  }
  T* data() { return kept_.data() + skipped(); }
  const T* data() const { return kept_.data() + skipped(); }
  T& operator[](int64_t i) { return data()[i]; }

 private:
  static constexpr int64_t kRoom = kLine / int64_t(sizeof(T));
  int64_t skipped() const {
    return (kLine - int64_t(reinterpret_cast<std::uintptr_t>(kept_.data()) % kLine)) % kLine / int64_t(sizeof(T));
  }
  std::vector<T> kept_;
};

inline float* grown(Aligned<float>& kept, int64_t floats) {
  kept.grow(floats);
  return kept.data();
}

}  // namespace kvedge
#endif
