// linear: rows of inputs become 8-bit integers, then meet the weights tile by tile.
// Twin of plugins/reference/linear.py.
#include "kvedge/linear.h"

#include <algorithm>
#include <vector>

#include "half.h"
#include "linear_loops.h"
#include "scratch.h"

namespace kvedge {
namespace {

constexpr int64_t kRowsATask = 16;        // of inputs that become integers
constexpr int64_t kProductATask = 1 << 18;  // multiplications that are worth handing to a thread

int64_t blocks_of(const kvedge_linear& l) { return l.inputs / kBlock; }

int64_t tiles_a_task(const kvedge_linear& l) {
  return std::max<int64_t>(1, kProductATask / (l.rows * l.inputs * kTile));
}

// The scratch: codes, then scales, then sums.
int64_t rows_with_room(const kvedge_linear& l) {
  const int64_t group = linear_loops().group_rows;
  return (l.rows + group - 1) / group * group;
}

struct Scratch {
  int8_t* codes;
  float* scale;
  float* sum;

  Scratch(const kvedge_linear& l, void* at)
      : codes(static_cast<int8_t*>(at)),
        scale(reinterpret_cast<float*>(codes + rows_with_room(l) * l.inputs)),
        sum(scale + rows_with_room(l) * blocks_of(l)) {}

  RowPlace place(const kvedge_linear& l, int64_t r) const {
    const int64_t group = linear_loops().group_rows, whole = l.rows / group * group;
    const bool together = r < whole || l.rows - whole >= linear_loops().least_rows;
    const int64_t first = together ? r / group * group : r;
    return {codes + first * l.inputs, scale + first * blocks_of(l), sum + first * blocks_of(l), r - first,
            together ? group : 1};
  }
};

// y [rows][16], rows `stride` apart, of one tile of weights.
void product_of_tile(const kvedge_linear& l, const QuantizedRows& x, int64_t tile, const float* start, float* y,
                     int64_t stride) {
  linear_loops().product(l.weights + tile * x.blocks * block_bytes(l.bits), l.bits, x, start, y, stride);
}

thread_local std::vector<float> one_tile;  // [rows][16]

void plain_tile(const kvedge_linear& l, const QuantizedRows& x, int64_t tile) {
  const int64_t first = tile * kTile, lanes = std::min(kTile, l.outputs - first);
  float start[kTile] = {};
  if (l.bias != nullptr) std::copy_n(l.bias + first, lanes, start);
  if (lanes == kTile) return product_of_tile(l, x, tile, start, l.y + first, l.outputs);
  float* whole = grown(one_tile, l.rows * kTile);
  product_of_tile(l, x, tile, start, whole, kTile);
  for (int64_t r = 0; r < l.rows; ++r) std::copy_n(whole + r * kTile, lanes, l.y + r * l.outputs + first);
}

// Outputs come in whole tiles, and there is no bias.
void gated_tile(const kvedge_linear& l, const QuantizedRows& x, int64_t tile) {
  const float start[kTile] = {};
  float* gate = grown(one_tile, l.rows * kTile);
  float* y = l.y + tile * kTile;
  product_of_tile(l, x, tile, start, gate, kTile);
  product_of_tile(l, x, tiles_of(l.outputs) + tile, start, y, l.outputs);
  linear_loops().gate(gate, l.rows, l.activation, y, l.outputs);
}

}  // namespace
}  // namespace kvedge

extern "C" {

int64_t kvedge_linear_scratch(const kvedge_linear* l) {
  return kvedge::rows_with_room(*l) * (l->inputs + 2 * kvedge::blocks_of(*l) * int64_t(sizeof(float)));
}

int64_t kvedge_linear_quantize_tasks(const kvedge_linear* l) {
  return (l->rows + kvedge::kRowsATask - 1) / kvedge::kRowsATask;
}

void kvedge_linear_quantize_task(const kvedge_linear* l, void* scratch, int64_t task) {
  const kvedge::Scratch to(*l, scratch);
  const int64_t blocks = kvedge::blocks_of(*l), first = task * kvedge::kRowsATask;
  for (int64_t r = first; r < std::min(first + kvedge::kRowsATask, l->rows); ++r)
    kvedge::linear_loops().quantize(l->x + r * l->inputs, blocks, to.place(*l, r));
}

int64_t kvedge_linear_product_tasks(const kvedge_linear* l) {
  const int64_t each = kvedge::tiles_a_task(*l);
  return l->rows == 0 ? 0 : (kvedge::tiles_of(l->outputs) + each - 1) / each;
}

void kvedge_linear_product_task(const kvedge_linear* l, const void* scratch, int64_t task) {
  const kvedge::Scratch from(*l, const_cast<void*>(scratch));
  const kvedge::QuantizedRows x = {from.codes, from.scale, from.sum, l->rows, kvedge::blocks_of(*l)};
  const int64_t each = kvedge::tiles_a_task(*l), first = task * each;
  for (int64_t tile = first; tile < std::min(first + each, kvedge::tiles_of(l->outputs)); ++tile)
    l->activation == KVEDGE_NO_ACTIVATION ? kvedge::plain_tile(*l, x, tile) : kvedge::gated_tile(*l, x, tile);
}

void kvedge_linear_row(const uint8_t* weights, int32_t bits, int64_t inputs, int64_t row, float* out) {
  using namespace kvedge;
  const int64_t lane = row % kTile;
  const uint8_t* block = weights + row / kTile * (inputs / kBlock) * block_bytes(bits);
  for (int64_t first = 0; first < inputs; first += kBlock, block += block_bytes(bits)) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(block + block_code_bytes(bits));
    const float scale = from_half(halves[lane]), least = from_half(halves[kTile + lane]);
    const int64_t per_chunk = 8 / bits;
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t four = i / 4;
      const int byte = block[four / per_chunk * 4 * kTile + lane * 4 + i % 4];
      const int code = bits == 8 ? byte : byte >> (4 * (four % per_chunk)) & 15;
      out[first + i] = float(code) * scale + least;
    }
  }
}

}  // extern "C"
