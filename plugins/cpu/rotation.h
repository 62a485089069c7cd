// Hadamard over head_dim, Kronecker with a DCT of its odd part: twin of plugins/reference/rotation.py.
//
// Works on a block [D][lanes]: channel-major, so every loop runs over independent lanes and the order of
// operations in a lane is that of the reference. Static: seal.cc is built without fused multiply-add, and its code
// must not be shared with other files.
#ifndef KVEDGE_ROTATION_H
#define KVEDGE_ROTATION_H

#include <cmath>
#include <cstdint>
#include <vector>

namespace kvedge {

struct Rotation {
  int64_t power, odd;
  std::vector<float> dct;  // [odd][odd], row = frequency

  explicit Rotation(int64_t head_dim) : power(head_dim & -head_dim), odd(head_dim / power), dct(odd * odd) {
    for (int64_t r = 0; r < odd; ++r)
      for (int64_t c = 0; c < odd; ++c)
        dct[r * odd + c] = float(std::sqrt((r == 0 ? 1.0 : 2.0) / double(odd)) *
                                 std::cos(3.141592653589793 * (double(c) + 0.5) * double(r) / double(odd)));
  }
};

// One Rotation per head_dim and thread: building it costs a few cosines.
static inline const Rotation& rotation_for(int64_t head_dim) {
  thread_local Rotation rotation(head_dim);
  if (rotation.power * rotation.odd != head_dim) rotation = Rotation(head_dim);
  return rotation;
}

static inline void mix(const Rotation& r, float* x, int64_t lanes, bool transpose, float* scratch) {
  if (r.odd == 1) return;
  for (int64_t p = 0; p < r.power; ++p) {
    float* rows = x + p * r.odd * lanes;
    for (int64_t i = 0; i < r.odd; ++i) {
      float* out = scratch + i * lanes;
      for (int64_t j = 0; j < r.odd; ++j) {
        const float weight = transpose ? r.dct[j * r.odd + i] : r.dct[i * r.odd + j];
        const float* in = rows + j * lanes;
        if (j == 0)
          for (int64_t t = 0; t < lanes; ++t) out[t] = in[t] * weight;
        else
          for (int64_t t = 0; t < lanes; ++t) out[t] = out[t] + in[t] * weight;
      }
    }
    for (int64_t i = 0; i < r.odd * lanes; ++i) rows[i] = scratch[i];
  }
}

static inline void butterfly(const Rotation& r, float* x, int64_t lanes) {
  const int64_t block = r.odd * lanes;  // one Hadamard row
  for (int64_t step = 1; step < r.power; step *= 2)
    for (int64_t first = 0; first < r.power; first += 2 * step) {
      float* low = x + first * block;
      float* high = low + step * block;
      for (int64_t i = 0; i < step * block; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  const float norm = float(1.0 / std::sqrt(double(r.power)));
  for (int64_t i = 0; i < r.power * block; ++i) x[i] = x[i] * norm;
}

// x [D][lanes] in place; scratch holds odd * lanes floats.
static inline void rotate(const Rotation& r, float* x, int64_t lanes, float* scratch) {
  mix(r, x, lanes, false, scratch);
  butterfly(r, x, lanes);
}

static inline void unrotate(const Rotation& r, float* x, int64_t lanes, float* scratch) {
  mix(r, x, lanes, true, scratch);
  butterfly(r, x, lanes);
}

}  // namespace kvedge
#endif
