// Inner loops of linear. Built once per instruction set: the build defines KVEDGE_LINEAR_LOOPS as the name of the
// table. Nothing here may be inline with external linkage, or the linker could hand code for a newer CPU to an
// older one.
//
// A block of a tile is 16 outputs times 32 inputs. Its codes meet the inputs' 8-bit codes in integers, exactly;
// scales come in once a block. Sums run over the blocks in order, whatever the number of rows.
#include "linear_loops.h"

#include <cmath>

#include "kvedge/linear.h"
#include "byte_step.h"
#include "exp.h"
#include "simd.h"

namespace kvedge {
namespace {

constexpr int kVectors = int(kTile) / kWidth;  // of a tile's outputs
constexpr int kFours = int(kBlock) / 4;  // four inputs are one word

constexpr int kGroupRows = kRegisters == 32 ? 8 : kWidth == 8 ? 2 : 1;

void normalize(const float* x, const float* skip, const float* gamma, float epsilon, int64_t count, float* sum, float* out) {
  Floats squares = no_floats();
  for (int64_t i = 0; i < count; i += kWidth) {
    const Floats here = skip == nullptr ? load_floats(x + i) : add(load_floats(x + i), load_floats(skip + i));
    store_floats(sum + i, here);
    squares = multiply_add(here, here, squares);
  }
  const Floats by = every_float(1.0f / std::sqrt(sum_of(squares) / float(count) + epsilon));
  for (int64_t i = 0; i < count; i += kWidth)
    store_floats(out + i, multiply(multiply(load_floats(sum + i), by), load_floats(gamma + i)));
}

// [block][four inputs][row][4]
KVEDGE_INLINE void place_codes(const int8_t* codes, int64_t b, const RowPlace& to) {
  int8_t* four = to.codes + (b * kFours * to.rows + to.row) * 4;
  for (int f = 0; f < kFours; ++f) std::memcpy(four + f * to.rows * 4, codes + 4 * f, 4);
}

void quantize(const float* x, int64_t blocks, const RowPlace& to) {
  for (int64_t b = 0; b < blocks; ++b, x += kBlock) {
    const ByteStep by = signed_step(x, kBlock);
    int32_t whole[kBlock];
    for (int i = 0; i < kBlock; i += kWidth)
      store_words(whole + i, nearest(multiply(load_floats(x + i), every_float(by.inverse))));
    int8_t codes[kBlock];
    int32_t total = 0;
    for (int i = 0; i < kBlock; ++i) codes[i] = int8_t(whole[i]), total += codes[i];
    place_codes(codes, b, to);
    to.scale[b * to.rows + to.row] = by.step;
    to.sum[b * to.rows + to.row] = by.step * float(total);
  }
}

// Integer sums of some rows over one block.
template <int ROWS>
struct Dots {
  Words sum[ROWS][kVectors];

  KVEDGE_MEMBER Dots() {
    repeat<ROWS * kVectors>(KVEDGE_EACH(n) { sum[n / kVectors][n % kVectors] = every_word(0); });
  }
  // Four inputs of every row.
  template <int BITS>
  KVEDGE_MEMBER void add(const Words (&codes)[kVectors], const int8_t* x) {
    repeat<ROWS>(KVEDGE_EACH(r) {
      int32_t four;
      std::memcpy(&four, x + r * 4, 4);
      const Words inputs = every_word(four);
      repeat<kVectors>(KVEDGE_EACH(v) { sum[r][v] = dot_bytes<BITS>(sum[r][v], codes[v], inputs); });
    });
  }
};

template <int BITS, int ROWS>
KVEDGE_INLINE Dots<ROWS> block_dots(const uint8_t* block, const int8_t* x) {
  constexpr int kPerChunk = 8 / BITS;  // codes of a byte
  Dots<ROWS> dots;
  repeat<kFours / kPerChunk>(KVEDGE_EACH(chunk) {
    const int32_t* words = reinterpret_cast<const int32_t*>(block) + chunk * kTile;
    Words bytes[kVectors], codes[kVectors];
    repeat<kVectors>(KVEDGE_EACH(v) { bytes[v] = load_words(words + v * kWidth, kWidth); });
    repeat<kPerChunk>(KVEDGE_EACH(part) {
      repeat<kVectors>(KVEDGE_EACH(v) {
        codes[v] = BITS == 8 ? bytes[v] : both(right<4 * part>(bytes[v]), 0x0f0f0f0fu);
      });
      dots.template add<BITS>(codes, x + 4 * ROWS * (chunk * kPerChunk + part));
    });
  });
  return dots;
}

// A group of rows, the first of which is `row`.
template <int BITS, int ROWS>
KVEDGE_INLINE void product_of_group(const Target& target, const QuantizedRows& x, int64_t row) {
  const uint8_t* tile = target.tile;
  const int8_t* codes = x.codes + row * x.blocks * kBlock;
  const float* x_scale = x.scale + row * x.blocks;
  const float* x_sum = x.sum + row * x.blocks;
  Floats sum[ROWS][kVectors];
  repeat<ROWS * kVectors>(KVEDGE_EACH(n) { sum[n / kVectors][n % kVectors] = load_floats(target.start + n % kVectors * kWidth); });
  for (int64_t b = 0; b < x.blocks; ++b, tile += block_bytes(BITS)) {
    const Dots<ROWS> dots = block_dots<BITS, ROWS>(tile, codes + b * kBlock * ROWS);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(tile + block_code_bytes(BITS));
    Floats scale[kVectors], least[kVectors];
    repeat<kVectors>(KVEDGE_EACH(v) {
      scale[v] = load_floats(halves + v * kWidth);
      least[v] = load_floats(halves + kTile + v * kWidth);
    });
    repeat<ROWS>(KVEDGE_EACH(r) {
      const Floats by = every_float(x_scale[b * ROWS + r]), total = every_float(x_sum[b * ROWS + r]);
      repeat<kVectors>(KVEDGE_EACH(v) {
        sum[r][v] = multiply_add(multiply(to_floats(dots.sum[r][v]), by), scale[v], sum[r][v]);
        sum[r][v] = multiply_add(least[v], total, sum[r][v]);
      });
    });
  }
  repeat<ROWS * kVectors>(KVEDGE_EACH(n) {
    store_floats(target.y + (row + n / kVectors) * target.stride + n % kVectors * kWidth, sum[n / kVectors][n % kVectors]);
  });
}

template <int BITS>
void product_of(const Target& target, const QuantizedRows& x) {
  int64_t row = 0;
  for (; row + kGroupRows <= x.count; row += kGroupRows) product_of_group<BITS, kGroupRows>(target, x, row);
  for (; row < x.count; ++row) product_of_group<BITS, 1>(target, x, row);
}

void product(const Target& target, int bits, const QuantizedRows& x) {
  if (bits == 4) product_of<4>(target, x);
  if (bits == 8) product_of<8>(target, x);
}

#ifdef __AMX_BF16__
}  // namespace
}  // namespace kvedge
#include "linear_amx.h"
namespace kvedge {
namespace {
#endif

// x / (1 + exp(-z)), by exp of what is negative.
KVEDGE_INLINE Floats times_sigmoid(Floats x, Floats z) {
  const Floats one = every_float(1.0f), minus = multiply(z, every_float(-1.0f));
  const Floats small = fast_exp(smaller(z, minus));  // exp(-|z|)
  const Floats above = multiply(smaller(larger(z, no_floats()), every_float(0x1p-126f)), every_float(0x1p126f));  // z > 0
  const Floats top = multiply_add(above, add(one, multiply(small, every_float(-1.0f))), small);  // 1 or exp(-|z|)
  return divide(multiply(x, top), add(one, small));
}

void gate(const float* gate, int64_t rows, int activation, float* y, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, gate += kTile, y += stride)
    for (int i = 0; i < kTile; i += kWidth) {
      const Floats x = load_floats(gate + i);
      const Floats cube = multiply(multiply(x, x), multiply(x, every_float(0.044715f)));
      const Floats z = activation == KVEDGE_SILU ? x : multiply(add(x, cube), every_float(1.5957691216f));
      store_floats(y + i, multiply(load_floats(y + i), times_sigmoid(x, z)));
    }
}

#ifdef __AMX_BF16__
const ManyRowsLoops kManyRows = {kTileRows, round_to_brain, product_of_many};
constexpr const ManyRowsLoops* kManyRowsLoops = &kManyRows;
#else
constexpr const ManyRowsLoops* kManyRowsLoops = nullptr;
#endif

}  // namespace

extern const LinearLoops KVEDGE_LINEAR_LOOPS;
const LinearLoops KVEDGE_LINEAR_LOOPS = {kGroupRows, normalize, quantize, product, gate, kManyRowsLoops};

}  // namespace kvedge
