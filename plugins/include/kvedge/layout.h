// The packed page, stated once for C++. kvedge/targets/packing.py says the same in Python; a test compares both
// over the grid of shapes.
//
// A packed page is a row of int32 words. Heads follow each other; within a head, in this order:
//   K codes    lanes are tokens, elements channels      V codes    lanes are channels, elements tokens
//   K scales   T fp16          V scales   T fp16        K mean     D fp16
// Codes are [group][word][lane], lane fastest. A group is 32 elements of a lane, the last one maybe fewer, in
// octets of 8. Element i of a group belongs to octet c = i / 8 and nibble n = 2 * (i % 4) + i / 4 % 2:
//   2 bits     word c / 2, bits 4n + 2 (c % 2) and the next
//   3 bits     the same for the magnitude; the sign in the last word, bit 4n + 2 (1 - c % 2) + c / 2
//   4 bits     word c, bits 4n ... 4n + 3
//   8 bits     word i / 4, byte i % 4, two's complement or a float (e4m3)
// Up to 4 bits the top bit of a code is its sign, the others index the positive levels. Unused bits are 0.
#ifndef KVEDGE_LAYOUT_H
#define KVEDGE_LAYOUT_H

#include <cstdint>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvedge reads the bytes of a word from the lowest"
#endif

namespace kvedge {

constexpr int32_t kLayoutVersion = 2;
constexpr int kGroup = 32, kOctet = 8;

// Words of a lane for a group of some octets.
constexpr int group_words(int bits, int octets) {
  return bits == 8 ? 2 * octets : bits == 4 ? octets : (octets + 1) / 2 + (bits == 3);
}

// Words of a lane of `depth` elements.
constexpr int64_t lane_words(int bits, int64_t depth) {
  return depth / kGroup * group_words(bits, kGroup / kOctet) + group_words(bits, int(depth % kGroup) / kOctet) * (depth % kGroup > 0);
}

struct BitPlace {
  int word, bit;
};

// Where bit `bit` of the code of an element of a group lies.
constexpr BitPlace bit_place(int bits, int octets, int element, int bit) {
  const int octet = element / kOctet, nibble = 2 * (element % 4) + element / 4 % 2;
  if (bits == 8) return {element / 4, 8 * (element % 4) + bit};
  if (bits == 4) return {octet, 4 * nibble + bit};
  if (bit < 2) return {octet / 2, 4 * nibble + 2 * (octet % 2) + bit};
  return {group_words(bits, octets) - 1, 4 * nibble + 2 * (1 - octet % 2) + octet / 2};
}

// Offsets in int32 words of one head.
struct PackedLayout {
  int64_t v_codes, k_scales, v_scales, k_mean, head_words;

  constexpr PackedLayout(int64_t head_dim, int64_t page, int k_bits, int v_bits)
      : v_codes(page * lane_words(k_bits, head_dim)),
        k_scales(v_codes + head_dim * lane_words(v_bits, page)),
        v_scales(k_scales + page / 2),
        k_mean(v_scales + page / 2),
        head_words(k_mean + head_dim / 2) {}

  constexpr int64_t page_words(int64_t kv_heads) const { return kv_heads * head_words; }
};

static_assert(lane_words(3, 64) == 6 && lane_words(8, 64) == 16, "a word per bit for 32 elements");
static_assert(lane_words(3, 80) == 8 && lane_words(2, 40) == 3 && lane_words(4, 24) == 3, "shorter last groups");
static_assert(PackedLayout(64, 64, 3, 3).head_words == 2 * 6 * 64 + 32 + 32 + 32, "codes, scales, mean");
static_assert(bit_place(3, 4, 0, 2).word == 2 && bit_place(3, 4, 0, 2).bit == 2, "a sign beside its pair");
static_assert(bit_place(3, 4, 31, 1).word == 1 && bit_place(3, 4, 31, 1).bit == 31, "the last pair of a group");
static_assert(bit_place(8, 4, 31, 7).word == 7 && bit_place(8, 4, 31, 7).bit == 31, "the last byte of a group");

}  // namespace kvedge
#endif
