// Levels out of the words of a page (kvedge/layout.h): a vector is one element of kWidth lanes.
#ifndef KVEDGE_WORDS_H
#define KVEDGE_WORDS_H

#include "kvedge/layout.h"
#include "simd.h"

namespace kvedge {
namespace {

// The sign of a 3-bit code is above its pair in even octets and below it in odd ones.
template <Code CODE>
struct Levels {
  static constexpr int kBits = bits_of(CODE);
  LevelTable<kBits, false> even;
  LevelTable<kBits, kBits == 3> odd;
};
template <>
struct Levels<Code::kUniform> {};
template <>
struct Levels<Code::kE4m3> {};

// Levels of floats in the upper byte of each word: their bits where float32 has them.
KVEDGE_INLINE Floats levels_of_floats(Words w) {
  return multiply(floats_of(choose(0x80000000u, w, right<4>(both(w, 0x7f000000u)))), every_float(kE4m3Exponent));
}

// A group of OCTETS octets of kWidth lanes.
template <int BITS, int OCTETS>
struct Group {
  static constexpr int kWords = group_words(BITS, OCTETS), kDepth = kOctet * OCTETS;
  Words w[kWords];

  KVEDGE_MEMBER Group(const int32_t* at, int64_t lanes, int64_t lane) {
    repeat<kWords>(KVEDGE_EACH(n) { w[n] = load_words(at + n * lanes + lane, lanes - lane); });
  }

  // Codes of 3 bits in the nibbles of an octet: a pair and, right beside it, its sign.
  template <int OCTET>
  KVEDGE_MEMBER Words triples() const {
    const Words pairs = w[OCTET / 2], signs = w[kWords - 1];
    if constexpr (OCTET == 0) return choose(0x33333333u, pairs, signs);
    if constexpr (OCTET == 1) return choose(0xccccccccu, pairs, left<1>(signs));
    if constexpr (OCTET == 2) return choose(0x33333333u, pairs, right<1>(signs));
    if constexpr (OCTET == 3) return choose(0xccccccccu, pairs, signs);
  }

  // A word with the codes of an octet in its nibbles; what stands beside them there is any.
  template <int OCTET>
  KVEDGE_MEMBER Words nibbles() const {
    if constexpr (BITS == 2) return w[OCTET / 2];
    if constexpr (BITS == 3) return choose(OCTET % 2 ? 0xccccccccu : 0x33333333u, w[OCTET / 2], w[kWords - 1]);
    if constexpr (BITS == 4) return w[OCTET];
  }

  template <int I, Code CODE>
  KVEDGE_MEMBER Floats level(const Levels<CODE>& levels) const {
    constexpr int kNumber = I / kOctet, kNibble = 8 * (I % 4) + 4 * (I / 4 % 2);
    if constexpr (CODE == Code::kE4m3) return levels_of_floats(left<24 - 8 * (I % 4)>(w[I / 4]));
    if constexpr (CODE == Code::kUniform)
      return multiply(to_floats(right_signed<24>(left<24 - 8 * (I % 4)>(w[I / 4]))), every_float(1.0f / kUniformSteps));
    if constexpr (BITS == 4) return levels.even.template at<kNibble>(w[kNumber]);
    if constexpr (BITS == 3 && kNumber % 2 == 0) return levels.even.template at<kNibble>(triples<kNumber>());
    if constexpr (BITS == 3 && kNumber % 2 == 1) return levels.odd.template at<kNibble + 1>(triples<kNumber>());
    if constexpr (BITS == 2) return levels.even.template at<kNibble + 2 * (kNumber % 2)>(w[kNumber / 2]);
  }
};

}  // namespace
}  // namespace kvedge
#endif
