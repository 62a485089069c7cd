// Lloyd-Max levels of N(0, 1), positive half, the uniform grid of 8 bits and e4m3; the values of targets/codebook.py,
// compared by a test.
// Static: this header is also compiled for newer instruction sets, whose code must not be shared.
#ifndef KVEDGE_CODEBOOK_H
#define KVEDGE_CODEBOOK_H

#include <cstdint>

namespace kvedge {

enum class Code { kNone, kNormal2, kNormal3, kNormal4, kUniform, kE4m3 };

constexpr int bits_of(Code code) {
  constexpr int kBits[] = {0, 2, 3, 4, 8, 8};
  return kBits[int(code)];
}

constexpr float kUniformSteps = 32.0f, kUniformLast = 127.0f;  // levels per unit, and the largest code
constexpr float kE4m3Last = 448.0f / 256.0f;                   // the largest level
constexpr float kE4m3Normal = 0x1p-14f;                        // the smallest one with all its mantissa
constexpr int kE4m3Dropped = 20;                               // bits of float32's mantissa that e4m3's has not
constexpr float kE4m3Exponent = 0x1p112f;                      // makes the exponent that of a level

static inline const float* levels_of(int bits) {
  static const float two[] = {0.4527800346f, 1.5104176085f};
  static const float three[] = {0.2450941789f, 0.7560052812f, 1.3439092785f, 2.1519457045f};
  static const float four[] = {0.1283950299f, 0.3880482995f, 0.6567591185f, 0.9423404565f,
                               1.2562311973f, 1.6180463860f, 2.0690172265f, 2.7325895710f};
  return bits == 2 ? two : bits == 3 ? three : four;
}

// The levels as integers, level = byte_step_of(bits) * integer.
constexpr int8_t kByteLevels[3][8] = {{18, 60}, {10, 31, 55, 88}, {5, 15, 25, 36, 48, 62, 79, 104}};

static constexpr const int8_t* byte_levels_of(int bits) { return kByteLevels[bits - 2]; }

static inline float byte_step_of(Code code) {
  if (code == Code::kUniform) return 1.0f / kUniformSteps;
  const int bits = bits_of(code);
  return bits == 2 ? 0.025172043102140676f : bits == 3 ? 0.024444069130997465f : 0.02620844828650694f;
}

static inline const float* boundaries_of(int bits) {
  static const float two[] = {float((0.4527800346 + 1.5104176085) / 2)};
  static const float three[] = {float((0.2450941789 + 0.7560052812) / 2), float((0.7560052812 + 1.3439092785) / 2),
                                float((1.3439092785 + 2.1519457045) / 2)};
  static const float four[] = {float((0.1283950299 + 0.3880482995) / 2), float((0.3880482995 + 0.6567591185) / 2),
                               float((0.6567591185 + 0.9423404565) / 2), float((0.9423404565 + 1.2562311973) / 2),
                               float((1.2562311973 + 1.6180463860) / 2), float((1.6180463860 + 2.0690172265) / 2),
                               float((2.0690172265 + 2.7325895710) / 2)};
  return bits == 2 ? two : bits == 3 ? three : four;
}

static inline int level_count(int bits) { return 1 << (bits - 1); }

}  // namespace kvedge
#endif
