// Bits of planes to one code per byte, 64 at a time. Part of planes.h.
//
// vpmultishiftqb gives every byte any eight consecutive bits of a quadword: with the 64 bits of a plane in
// each quadword, it puts any bit anywhere, at the place that the plane has in a code.
namespace kvedge::bench::KVEDGE_ISA {

constexpr int kSpread = 64;  // codes in one vector of bytes

// Which lane a byte takes its code from.
struct Natural {
  static constexpr int lane(int n) { return n; }
};
struct Strided {  // byte v of word i: lane 16*v + i
  static constexpr int lane(int n) { return 16 * (n % 4) + n / 4; }
};
struct BeforeUnpacking {  // what interleave turns into the natural order
  static constexpr int lane(int n) { return 16 * (n / 4 % 4) + 4 * (n / 16) + n % 4; }
};

template <class From, int PLANE>
struct Control {
  alignas(64) uint8_t bit[64];
  constexpr Control() : bit() {
    for (int n = 0; n < 64; ++n) bit[n] = uint8_t((From::lane(n) - PLANE) & 63);
  }
};
template <class From, int PLANE>
constexpr Control<From, PLANE> kControl;

template <int BITS, class From>
KVEDGE_INLINE Words spread_from(const uint8_t* at, int64_t plane_bytes) {
  Words codes = _mm512_setzero_si512();
  repeat<BITS>(KVEDGE_EACH(b) {
    const Words control = _mm512_load_si512(kControl<From, b>.bit);
    const Words plane = _mm512_multishift_epi64_epi8(control, _mm512_set1_epi64(load64(at + b * plane_bytes)));
    codes = b == 0 ? plane : choose(((1 << b) - 1) * 0x01010101, codes, plane);
  });
  return codes;
}

template <int BITS>
KVEDGE_INLINE Words spread(const uint8_t* at, int64_t plane_bytes) {
  return spread_from<BITS, Natural>(at, plane_bytes);
}
template <int BITS>
KVEDGE_INLINE Words spread_strided(const uint8_t* at, int64_t plane_bytes) {
  return spread_from<BITS, Strided>(at, plane_bytes);
}

// 64 lanes of four rows to four vectors of words, each a lane with its four rows.
template <int BITS>
KVEDGE_INLINE void interleave(const uint8_t* at, int64_t row_bytes, int64_t plane_bytes, Words out[4]) {
  Words row[4];
  repeat<4>(KVEDGE_EACH(r) { row[r] = spread_from<BITS, BeforeUnpacking>(at + r * row_bytes, plane_bytes); });
  const Words low[2] = {_mm512_unpacklo_epi8(row[0], row[1]), _mm512_unpacklo_epi8(row[2], row[3])};
  const Words high[2] = {_mm512_unpackhi_epi8(row[0], row[1]), _mm512_unpackhi_epi8(row[2], row[3])};
  out[0] = _mm512_unpacklo_epi16(low[0], low[1]);
  out[1] = _mm512_unpackhi_epi16(low[0], low[1]);
  out[2] = _mm512_unpacklo_epi16(high[0], high[1]);
  out[3] = _mm512_unpackhi_epi16(high[0], high[1]);
}

KVEDGE_INLINE void order_interleaved(Words*) {}

}  // namespace kvedge::bench::KVEDGE_ISA
