// Candidates of one 32-bit word per lane: C (fields in nibbles) and E (3 bits side by side).
//
// Both keep four consecutive elements of a lane in the four bytes of its word, at the same bit: shifted down,
// bytes are ready for integer products of four, and words, whose high bits vpermps ignores, for fp32.
#ifndef KVEDGE_BENCH_WORDS_H
#define KVEDGE_BENCH_WORDS_H

#include "simd.h"

namespace kvedge::bench::KVEDGE_ISA {

// Eight bits are two's complement: the level is the byte. Keys get their bias by flipping the top bit.
template <>
struct FloatTable<8> {
  template <class ToCode>
  FloatTable(const float*, ToCode) {}
  template <int BIT>
  KVEDGE_INLINE Floats at(Words w) const { return to_floats(right_signed<24>(left<24 - BIT>(w))); }
};
template <>
struct ByteTable<8> {
  int32_t bias;
  template <class ToCode>
  ByteTable(const int8_t* of_codes, ToCode) : bias(uint8_t(of_codes[0]) * 0x01010101) {}
  KVEDGE_INLINE Words at(Words w) const { return bias ? flip(w, bias) : w; }
};

// C: 32 elements of one vector of lanes, in one word per lane and bit. Octet N, elements 8*N ... 8*N + 7, fills
// the eight nibbles of a word: element 4*h + b is in nibble h of byte b. Codes of 3 bits are put together from
// a word of pairs and the word of signs by one selection: a sign lies in the half of the nibble where its pair
// is not. Which bits of a nibble make the code depends on the octet; so does the table, instead of shifts.
template <int BITS>
inline int code_in_nibble(int octet, int nibble) {
  const int odd = octet % 2;
  if (BITS != 2 && BITS != 3) return nibble;
  const int pair = nibble >> 2 * odd & 3, sign = nibble >> (2 * (1 - odd) + octet / 2) & 1;
  return BITS == 2 ? pair : pair | sign << 2;
}

template <int BITS>
struct NibbleBytes {
  static constexpr int kPlaces = BITS == 2 ? 2 : BITS == 3 ? 4 : 1;
  ByteTable<BITS> place[4];
  explicit NibbleBytes(const int8_t* levels) : place{of(levels, 0), of(levels, 1), of(levels, 2), of(levels, 3)} {}
  static ByteTable<BITS> of(const int8_t* levels, int octet) {
    return ByteTable<BITS>(levels, [octet](int i) { return code_in_nibble<BITS>(octet % kPlaces, i & 15); });
  }
  template <int N>
  KVEDGE_INLINE Words at(Words w) const { return place[N % kPlaces].at(w); }
};

// vpermps of AVX2 takes three bits, so here the sign stands next to its pair: above it, or (odd octets) below.
template <int BITS>
struct NibbleFloats {
  FloatTable<BITS> even, odd;
  explicit NibbleFloats(const float* levels)
      : even(levels, [](int i) { return i & ((1 << BITS) - 1); }),
        odd(levels, [](int i) { return BITS == 3 ? (i >> 1 & 3) | (i & 1) << 2 : i & ((1 << BITS) - 1); }) {}
};

template <int BITS>
struct NibbleBlock {
  static constexpr int kBits = BITS, kDepth = 32, kVecs = 1;
  using FloatLevels = NibbleFloats<BITS>;
  using ByteLevels = NibbleBytes<BITS>;
  Words w[BITS];

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int, int i, int lane) {
    const uint8_t* at = page + 4 * (int64_t(i / 32) * BITS * lanes + lane);
    repeat<BITS>(KVEDGE_EACH(n) { w[n] = load_words(at + 4 * n * lanes); });
  }

  template <int N>
  KVEDGE_INLINE Words octet() const {
    if constexpr (BITS == 2) return w[N / 2];
    if constexpr (BITS == 3) return choose(N % 2 ? 0xcccccccc : 0x33333333, w[N / 2], w[2]);
    if constexpr (BITS == 4) return w[N];
  }
  template <int N>
  KVEDGE_INLINE Words adjacent() const {
    if constexpr (N == 1) return choose(0xcccccccc, w[0], left<1>(w[2]));
    if constexpr (N == 2) return choose(0x33333333, w[1], right<1>(w[2]));
    return octet<N>();
  }

  template <int K, int V>
  KVEDGE_INLINE Floats level(const FloatLevels& table) const {
    constexpr int kOctet = K / 8, kBit = 8 * (K % 4) + 4 * (K / 4 % 2);
    if constexpr (BITS == 8) return table.even.template at<8 * (K % 4)>(w[K / 4]);
    if constexpr (BITS == 4) return table.even.template at<kBit>(w[kOctet]);
    if constexpr (BITS == 2) return table.even.template at<kBit + 2 * (kOctet % 2)>(w[kOctet / 2]);
    if constexpr (BITS == 3 && kOctet % 2 == 0) return table.even.template at<kBit>(adjacent<kOctet>());
    if constexpr (BITS == 3 && kOctet % 2 == 1) return table.odd.template at<kBit + 1>(adjacent<kOctet>());
  }
  template <int G, int V>
  KVEDGE_INLINE Words bytes(const ByteLevels& table) const {
    if constexpr (BITS == 8) return table.template at<0>(w[G]);
    else return table.template at<G / 2>(right<4 * (G % 2)>(octet<G / 2>()));
  }
  static KVEDGE_INLINE void order(Words*) {}
};

// E: 32 elements of 3 bits in three words per lane.
struct TripleBlock {
  static constexpr int kBits = 3, kDepth = 32, kVecs = 1;
  using FloatLevels = FloatTable<3>;
  using ByteLevels = ByteTable<3>;
  Words w[3];

  KVEDGE_INLINE void load(const uint8_t* page, int lanes, int, int i, int lane) {
    repeat<3>(KVEDGE_EACH(n) { w[n] = load_words(page + 4 * ((i / 32 * 3 + n) * lanes + lane)); });
  }
  // The word with the codes of group G (four elements) and the bit where they begin in each byte.
  template <int G>
  KVEDGE_INLINE Words word() const {
    if constexpr (G < 6) return w[G / 2];
    if constexpr (G == 6) return choose(0x03030303, right<6>(w[0]), right<4>(w[2]));
    if constexpr (G == 7) return choose(0x03030303, right<6>(w[1]), right<5>(w[2]));
  }
  static constexpr int bit_of(int group) { return group < 6 ? 3 * (group % 2) : 0; }

  template <int K, int V>
  KVEDGE_INLINE Floats level(const FloatTable<3>& table) const {
    return table.template at<8 * (K % 4) + bit_of(K / 4)>(word<K / 4>());
  }
  template <int G, int V>
  KVEDGE_INLINE Words bytes(const ByteTable<3>& table) const { return table.at(right<bit_of(G)>(word<G>())); }
  static KVEDGE_INLINE void order(Words*) {}
};

}  // namespace kvedge::bench::KVEDGE_ISA
#endif
