// Plain vectors of the compiler: 4 lanes, as SSE2 and NEON have them. Part of simd.h.
namespace kvedge {
namespace {

typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Words __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t Unsigned __attribute__((vector_size(16), aligned(4), may_alias));
constexpr int kWidth = 4;
constexpr int kRegisters = 16;
constexpr int kDirectRows = 0;  // a level takes a dozen instructions

KVEDGE_INLINE Floats no_floats() { return Floats{}; }
KVEDGE_INLINE Floats load_floats(const float* at) { return *reinterpret_cast<const Floats*>(at); }
KVEDGE_INLINE void store_floats(float* at, Floats x) { *reinterpret_cast<Floats*>(at) = x; }
KVEDGE_INLINE Floats every_float(float x) { return Floats{} + x; }
KVEDGE_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
KVEDGE_INLINE Floats multiply(Floats a, Floats b) { return a * b; }
KVEDGE_INLINE Floats add(Floats a, Floats b) { return a + b; }
// Both give b where either is NaN.
KVEDGE_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
KVEDGE_INLINE Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
KVEDGE_INLINE Words bits_of(Floats x) { return (Words)x; }
KVEDGE_INLINE Floats floats_of(Words x) { return (Floats)x; }
KVEDGE_INLINE Words add_words(Words x, int32_t n) { return x + n; }
// 0 where test < limit, else x
KVEDGE_INLINE Floats zero_below(float limit, Floats test, Floats x) { return (Floats)((Words)x & ~(test < limit)); }

KVEDGE_INLINE Words load_words(const int32_t* at, int64_t) { return *reinterpret_cast<const Words*>(at); }
KVEDGE_INLINE Floats to_floats(Words x) { return __builtin_convertvector(x, Floats); }
template <int N>
KVEDGE_INLINE Words right(Words x) { return (Words)((Unsigned)x >> N); }
template <int N>
KVEDGE_INLINE Words left(Words x) { return (Words)((Unsigned)x << N); }
template <int N>
KVEDGE_INLINE Words right_signed(Words x) { return x >> N; }
KVEDGE_INLINE Words choose(uint32_t mask, Words a, Words b) { return (a & int32_t(mask)) | (b & int32_t(~mask)); }

// Levels by the low bits of a word, by a tree of selections. SIGN_FIRST: the sign is the lowest bit, the
// magnitude above it.
template <int BITS, bool SIGN_FIRST>
struct LevelTable {
  template <int BIT>
  KVEDGE_MEMBER Floats at(Words w) const {
    constexpr int kMagnitude = SIGN_FIRST ? BIT + 1 : BIT, kSign = SIGN_FIRST ? BIT : BIT + BITS - 1;
    Floats choice[1 << (BITS - 1)];
    for (int i = 0; i < 1 << (BITS - 1); ++i) choice[i] = Floats{} + levels_of(BITS)[i];
    for (int bit = 0; bit < BITS - 1; ++bit) {
      const Words set = (w & int32_t(1u << (kMagnitude + bit))) != 0;
      for (int i = 0; i < 1 << (BITS - 2 - bit); ++i) choice[i] = set ? choice[2 * i + 1] : choice[2 * i];
    }
    return (Floats)((Words)choice[0] ^ (left<31 - kSign>(w) & int32_t(0x80000000u)));
  }
};

KVEDGE_INLINE void transpose_block(const float* in, int64_t columns, float* out, int64_t stride) {
  for (int c = 0; c < 8; ++c)
    for (int r = 0; r < 8; ++r) out[c * stride + r] = in[r * columns + c];
}

KVEDGE_INLINE void read_8_halves(const uint16_t* halves, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = from_half(halves[i]);
}

KVEDGE_INLINE void round_8_to_half(const float* x, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = from_half(to_half(x[i]));
}

}  // namespace
}  // namespace kvedge
