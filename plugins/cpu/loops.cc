// Inner loops of attend, plain code on vectors of kLanes floats. Built once per instruction set: the build
// defines KVEDGE_LOOPS as the name of the table. Nothing here may be inline with external linkage, or the
// linker could hand code for a newer CPU to an older one.
#include "loops.h"

#include "codebook.h"
#include "half.h"

#define KVEDGE_INLINE static inline __attribute__((always_inline))

namespace kvedge {
namespace {

typedef float Vec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef float Vec8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Int8 __attribute__((vector_size(32), aligned(4), may_alias));

constexpr int64_t kRows = 4;  // query rows that share one load of a key or value vector

KVEDGE_INLINE Vec& vec(float* x) { return *reinterpret_cast<Vec*>(x); }
KVEDGE_INLINE const Vec& vec(const float* x) { return *reinterpret_cast<const Vec*>(x); }

// Eight levels from one byte of each plane, by a tree of selections.
template <int BITS>
KVEDGE_INLINE void expand_byte(const uint8_t* planes, int64_t plane_bytes, const float* levels, float* out) {
  const Int8 lane = {1, 2, 4, 8, 16, 32, 64, 128};
  Int8 set[BITS];
  for (int bit = 0; bit < BITS; ++bit) set[bit] = ((Int8{} + int32_t(planes[bit * plane_bytes])) & lane) != 0;
  Vec8 choice[1 << (BITS - 1)];
  for (int i = 0; i < 1 << (BITS - 1); ++i) choice[i] = Vec8{} + levels[i];
  for (int bit = 0; bit < BITS - 1; ++bit)
    for (int i = 0; i < 1 << (BITS - 2 - bit); ++i) choice[i] = set[bit] ? choice[2 * i + 1] : choice[2 * i];
  *reinterpret_cast<Vec8*>(out) = set[BITS - 1] ? -choice[0] : choice[0];
}

// The same at 8 bits, where the level is the magnitude itself.
template <>
inline __attribute__((always_inline)) void expand_byte<kUniformBits>(const uint8_t* planes, int64_t plane_bytes, const float*, float* out) {
  const Int8 lane = {1, 2, 4, 8, 16, 32, 64, 128};
  Int8 magnitude = {}, set = {};
  for (int bit = 0; bit < kUniformBits; ++bit) {
    set = ((Int8{} + int32_t(planes[bit * plane_bytes])) & lane) != 0;
    if (bit < kUniformBits - 1) magnitude += set & (1 << bit);
  }
  const Vec8 level = __builtin_convertvector(magnitude, Vec8) * (1.0f / kUniformSteps);
  *reinterpret_cast<Vec8*>(out) = set ? -level : level;
}

template <int BITS>
void expand_rows(const uint8_t* planes, int64_t plane_bytes, int64_t rows, int64_t row_bytes, float* out,
                 int64_t stride) {
  const float* levels = levels_of(BITS);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < row_bytes; ++i)
      expand_byte<BITS>(planes + r * row_bytes + i, plane_bytes, levels, out + r * stride + 8 * i);
}

void expand(int bits, const uint8_t* planes, int64_t plane_bytes, int64_t rows, int64_t row_bytes, float* out,
            int64_t stride) {
  if (bits == 2) expand_rows<2>(planes, plane_bytes, rows, row_bytes, out, stride);
  if (bits == 3) expand_rows<3>(planes, plane_bytes, rows, row_bytes, out, stride);
  if (bits == 4) expand_rows<4>(planes, plane_bytes, rows, row_bytes, out, stride);
  if (bits == kUniformBits) expand_rows<kUniformBits>(planes, plane_bytes, rows, row_bytes, out, stride);
}

template <int ROWS>
KVEDGE_INLINE void score_rows(const float* q, int64_t stride, int64_t dim, const float* keys, int64_t lanes, float* out) {
  for (int64_t t = 0; t < lanes; t += kLanes) {
    Vec sum[ROWS] = {};
    for (int64_t d = 0; d < dim; ++d) {
      const Vec k = vec(keys + d * lanes + t);
      for (int r = 0; r < ROWS; ++r) sum[r] += q[r * stride + d] * k;
    }
    for (int r = 0; r < ROWS; ++r) vec(out + r * lanes + t) = sum[r];
  }
}

template <int ROWS>
KVEDGE_INLINE void sum_rows(const float* weights, int64_t lanes, int64_t tokens, const float* values, int64_t stride,
                            float* out) {
  for (int64_t d = 0; d < stride; d += kLanes) {
    Vec sum[ROWS];
    for (int r = 0; r < ROWS; ++r) sum[r] = vec(out + r * stride + d);
    for (int64_t t = 0; t < tokens; ++t) {
      const Vec v = vec(values + t * stride + d);
      for (int r = 0; r < ROWS; ++r) sum[r] += weights[r * lanes + t] * v;
    }
    for (int r = 0; r < ROWS; ++r) vec(out + r * stride + d) = sum[r];
  }
}

void score(const float* q, int64_t rows, int64_t stride, int64_t dim, const float* keys, int64_t lanes, float* out) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) score_rows<kRows>(q + r * stride, stride, dim, keys, lanes, out + r * lanes);
  for (; r < rows; ++r) score_rows<1>(q + r * stride, stride, dim, keys, lanes, out + r * lanes);
}

void accumulate(const float* weights, int64_t rows, int64_t lanes, int64_t tokens, const float* values, int64_t stride,
                float* out) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    sum_rows<kRows>(weights + r * lanes, lanes, tokens, values, stride, out + r * stride);
  for (; r < rows; ++r) sum_rows<1>(weights + r * lanes, lanes, tokens, values, stride, out + r * stride);
}

void rescale(float* scores, const float* scale, float offset, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t) scores[t] = scores[t] * scale[t] + offset;
}

KVEDGE_INLINE float add_lanes(const Vec& sums) {
  float half[kLanes / 2], sum = 0.0f;
  for (int64_t t = 0; t < kLanes / 2; ++t) half[t] = sums[t] + sums[t + kLanes / 2];
  for (int64_t t = 0; t < kLanes / 2; ++t) sum += half[t];
  return sum;
}

// exp over x <= 0 within 2 ulp: range reduction by ln 2 in two parts, a degree-6 polynomial (Cephes' expf).
// Below e^-80 it is 0: such weights vanish in the sum, and their products would be denormal, which is slow.
KVEDGE_INLINE float fast_exp(float exponent) {
  const float x = exponent < -80.0f ? -80.0f : exponent;
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float power = p * float_of_bits((bits_of_float(shifted) - 0x4b400000u + 127u) << 23);
  return exponent < -80.0f ? 0.0f : power;
}

float exp_of_negative(float x) { return fast_exp(x); }

float weigh(float* scores, int64_t lo, int64_t hi, int64_t lanes, float top) {
  for (int64_t t = 0; t < lanes; ++t) {
    const float weight = fast_exp(scores[t] - top > 0.0f ? 0.0f : scores[t] - top);
    scores[t] = t >= lo && t < hi ? weight : 0.0f;
  }
  Vec sums = {};
  for (int64_t t = 0; t < lanes; t += kLanes) sums += vec(scores + t);
  return add_lanes(sums);
}

float dot(const float* a, const float* b, int64_t stride) {
  Vec sums = {};
  for (int64_t d = 0; d < stride; d += kLanes) sums += vec(a + d) * vec(b + d);
  return add_lanes(sums);
}

}  // namespace

extern const Loops KVEDGE_LOOPS;
const Loops KVEDGE_LOOPS = {KVEDGE_LOOPS_NAME, expand, score, accumulate, rescale, weigh, exp_of_negative, dot};

}  // namespace kvedge
