// Bits of planes to one code per byte, 32 at a time. Part of planes.h.
namespace kvedge::bench::KVEDGE_ISA {

constexpr int kSpread = 32;  // codes in one vector of bytes

// Byte n: lane n. Each byte takes the byte with its bit, and compares.
template <int BITS>
KVEDGE_INLINE Words spread(const uint8_t* at, int64_t plane_bytes) {
  const Words from = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const Words bit = _mm256_set1_epi64x(int64_t(0x8040201008040201u));
  Words codes = _mm256_setzero_si256();
  repeat<BITS>(KVEDGE_EACH(b) {
    const Words bytes = _mm256_shuffle_epi8(every_word(load32(at + b * plane_bytes)), from);
    const Words set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    codes = _mm256_or_si256(codes, both(set, 0x01010101 << b));
  });
  return codes;
}

// Byte v of word i: lane 8*v + i. One variable shift a plane.
template <int BITS>
KVEDGE_INLINE Words spread_strided(const uint8_t* at, int64_t plane_bytes) {
  const Words lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  Words codes = _mm256_setzero_si256();
  repeat<BITS>(KVEDGE_EACH(b) {
    const Words shifted = _mm256_srlv_epi32(every_word(load32(at + b * plane_bytes)), lane);
    codes = _mm256_or_si256(codes, left<b>(both(shifted, 0x01010101)));
  });
  return codes;
}

// 32 lanes of four rows to four vectors of words, each a lane with its four rows; see order_interleaved.
template <int BITS>
KVEDGE_INLINE void interleave(const uint8_t* at, int64_t row_bytes, int64_t plane_bytes, Words out[4]) {
  Words row[4];
  repeat<4>(KVEDGE_EACH(r) { row[r] = spread_strided<BITS>(at + r * row_bytes, plane_bytes); });
  const Words low[2] = {_mm256_unpacklo_epi8(row[0], row[1]), _mm256_unpacklo_epi8(row[2], row[3])};
  const Words high[2] = {_mm256_unpackhi_epi8(row[0], row[1]), _mm256_unpackhi_epi8(row[2], row[3])};
  out[0] = _mm256_unpacklo_epi16(low[0], low[1]);
  out[1] = _mm256_unpackhi_epi16(low[0], low[1]);
  out[2] = _mm256_unpacklo_epi16(high[0], high[1]);
  out[3] = _mm256_unpackhi_epi16(high[0], high[1]);
}

// Word j of half q of vector u is lane 8*j + 4*q + u: a 4 x 4 transpose, once for the sums of a page.
KVEDGE_INLINE void order_interleaved(Words* x) {
  const Words a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
  const Words c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm256_unpacklo_epi64(a, c);
  x[1] = _mm256_unpackhi_epi64(a, c);
  x[2] = _mm256_unpacklo_epi64(b, d);
  x[3] = _mm256_unpackhi_epi64(b, d);
}

}  // namespace kvedge::bench::KVEDGE_ISA
