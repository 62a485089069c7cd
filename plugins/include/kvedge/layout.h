// The packed page, stated once for C++. kvedge/targets/packing.py says the same in Python; a test compares both.
//
// A packed page is a row of int32 words. Heads follow each other; within a head, in this order:
//   K planes   k_bits planes of T*D bits: plane 0 is the lowest magnitude bit, the last plane the sign
//   V planes   v_bits planes of T*D bits
//   K scales   T fp16          V scales   T fp16          K mean   D fp16
// Key planes run by channel (bit d*T + t), value planes by token (bit t*D + d). Bit i of a plane is bit
// i % 8 of byte i / 8. T and D are multiples of 8, so each channel of K and each token of V starts a byte.
#ifndef KVEDGE_LAYOUT_H
#define KVEDGE_LAYOUT_H

#include <cstdint>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvedge stores planes as little-endian words"
#endif

namespace kvedge {

constexpr int32_t kLayoutVersion = 1;

struct PackedLayout {
  int64_t plane_bytes, v_planes, k_scales, v_scales, k_mean, head_bytes;

  constexpr PackedLayout(int64_t head_dim, int64_t page, int64_t k_bits, int64_t v_bits)
      : plane_bytes(page * head_dim / 8),
        v_planes(k_bits * plane_bytes),
        k_scales(v_planes + v_bits * plane_bytes),
        v_scales(k_scales + 2 * page),
        k_mean(v_scales + 2 * page),
        head_bytes(k_mean + 2 * head_dim) {}

  constexpr int64_t page_words(int64_t kv_heads) const { return kv_heads * head_bytes / 4; }
};

static_assert(PackedLayout(64, 64, 3, 3).plane_bytes == 512, "one bit of 64 channels of 64 tokens");
static_assert(PackedLayout(64, 64, 3, 3).head_bytes == 6 * 512 + 2 * 128 + 128, "planes, scales, mean");
static_assert(PackedLayout(8, 8, 2, 2).head_bytes % 4 == 0, "the smallest head fills whole words");

}  // namespace kvedge
#endif
