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

constexpr int64_t kRowsATask = 16;        // of inputs that are rounded
constexpr int64_t kProductATask = 1 << 18;  // multiplications that are worth handing to a thread

int64_t blocks_of(const kvedge_linear& l) { return l.inputs / kBlock; }

// Matrix units take rows from so many on, or never.
const ManyRowsLoops* many_loops(const kvedge_linear& l) {
  const ManyRowsLoops* many = linear_loops().many;
  return many != nullptr && l.rows >= many->group_rows ? many : nullptr;
}

int64_t up_to_whole(int64_t n, int64_t group) { return (n + group - 1) / group * group; }

// Tiles at a time: pairs where matrix units take two. Tasks are of about one size and, where there are few, even in
// number, or one of two threads would wait for the other.
int64_t tiles_a_task(const kvedge_linear& l) {
  const int64_t tiles = tiles_of(l.outputs), least = many_loops(l) != nullptr && l.activation == KVEDGE_NO_ACTIVATION ? 2 : 1;
  const int64_t worth = std::max(least, kProductATask / (l.rows * l.inputs * kTile));
  const int64_t tasks = tiles <= worth ? 1 : up_to_whole((tiles + worth - 1) / worth, 2);
  return up_to_whole((tiles + tasks - 1) / tasks, least);
}

// The scratch: codes, then scales, then sums.
struct Bytes {
  int8_t* codes;
  float* scale;
  float* sum;

  Bytes(const kvedge_linear& l, void* at)
      : codes(static_cast<int8_t*>(at)),
        scale(reinterpret_cast<float*>(codes + l.rows * l.inputs)),
        sum(scale + l.rows * blocks_of(l)) {}

  static int64_t size_for(const kvedge_linear& l) {
    return l.rows * (l.inputs + 2 * blocks_of(l) * int64_t(sizeof(float)));
  }
  RowPlace place(const kvedge_linear& l, int64_t r) const {
    const int64_t group = linear_loops().group_rows, whole = l.rows / group * group, first = r < whole ? r / group * group : r;
    return {codes + first * l.inputs, scale + first * blocks_of(l), sum + first * blocks_of(l), r - first,
            r < whole ? group : 1};
  }
  QuantizedRows rows(const kvedge_linear& l) const { return {codes, scale, sum, l.rows, blocks_of(l)}; }
};

uint16_t* place_of_row(const kvedge_linear& l, const ManyRowsLoops& many, int64_t row, uint16_t* rounded) {
  const int64_t within = row % many.group_rows;
  return rounded + (row - within) * l.inputs + within * kBlock;
}

thread_local Aligned<float> kept_tile;  // [rows][16]
thread_local Aligned<float> kept_row;   // what meets the weights, and x + skip

// Row r of what meets the weights.
const float* input_row(const kvedge_linear& l, int64_t r) {
  const float* x = l.x + r * l.inputs;
  if (l.gamma == nullptr) return x;
  float* out = grown(kept_row, 2 * l.inputs);
  float* sum = l.sum == nullptr ? out + l.inputs : l.sum + r * l.inputs;
  const float* skip = l.skip == nullptr ? nullptr : l.skip + r * l.inputs;
  linear_loops().normalize(x, skip, l.gamma, l.epsilon, l.inputs, sum, out);
  return out;
}

// Outputs of one tile of weights: where they belong, or beside that where the tile is not whole.
struct Outputs {
  int64_t first, lanes;
  alignas(kLine) float start[kTile] = {};
  float* whole = nullptr;

  Outputs(const kvedge_linear& l, int64_t tile) : first(tile * kTile), lanes(std::min(kTile, l.outputs - first)) {
    if (l.bias != nullptr) std::copy_n(l.bias + first, lanes, start);
    if (lanes < kTile) whole = grown(kept_tile, l.rows * kTile);
  }
  Target target(const kvedge_linear& l) const {
    const uint8_t* weights = l.weights + first / kTile * blocks_of(l) * block_bytes(l.bits);
    return whole == nullptr ? Target{weights, start, l.y + first, l.outputs} : Target{weights, start, whole, kTile};
  }
  void finish(const kvedge_linear& l) const {
    if (whole == nullptr) return;
    for (int64_t r = 0; r < l.rows; ++r) std::copy_n(whole + r * kTile, lanes, l.y + r * l.outputs + first);
  }
};

void multiply(const kvedge_linear& l, const void* scratch, const Target* targets, int count) {
  if (const ManyRowsLoops* many = many_loops(l))
    return many->product(targets, count, l.bits, {static_cast<const uint16_t*>(scratch), l.rows, blocks_of(l)});
  const QuantizedRows x = Bytes(l, const_cast<void*>(scratch)).rows(l);
  for (int n = 0; n < count; ++n) linear_loops().product(targets[n], l.bits, x);
}

// Tiles [first, last).
void plain_tiles(const kvedge_linear& l, const void* scratch, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; tile += 2) {
    const Outputs a(l, tile), b(l, std::min(tile + 1, last - 1));
    const Target targets[] = {a.target(l), b.target(l)};
    multiply(l, scratch, targets, tile + 1 < last ? 2 : 1);
    a.finish(l);
    b.finish(l);
  }
}

// Outputs come in whole tiles, and there is no bias.
void gated_tile(const kvedge_linear& l, const void* scratch, int64_t tile) {
  const Outputs up(l, tile);
  Target targets[] = {up.target(l), up.target(l)};
  targets[0].tile += tiles_of(l.outputs) * blocks_of(l) * block_bytes(l.bits);
  targets[1].y = grown(kept_tile, l.rows * kTile);
  targets[1].stride = kTile;
  multiply(l, scratch, targets, 2);
  linear_loops().gate(targets[1].y, l.rows, l.activation, targets[0].y, l.outputs);
}

}  // namespace
}  // namespace kvedge

extern "C" {

int64_t kvedge_linear_scratch(const kvedge_linear* l) {
  using namespace kvedge;
  if (const ManyRowsLoops* many = many_loops(*l))
    return up_to_whole(l->rows, many->group_rows) * l->inputs * int64_t(sizeof(uint16_t));
  return Bytes::size_for(*l);
}

int64_t kvedge_linear_many_rows(void) {
  const kvedge::ManyRowsLoops* many = kvedge::linear_loops().many;
  return many == nullptr ? 0 : many->group_rows;
}

int64_t kvedge_linear_quantize_tasks(const kvedge_linear* l) {
  return (l->rows + kvedge::kRowsATask - 1) / kvedge::kRowsATask;
}

void kvedge_linear_quantize_task(const kvedge_linear* l, void* scratch, int64_t task) {
  using namespace kvedge;
  const int64_t first = task * kRowsATask, last = std::min(first + kRowsATask, l->rows);
  const ManyRowsLoops* many = many_loops(*l);
  for (int64_t r = first; r < last; ++r) {
    const float* x = input_row(*l, r);
    if (many != nullptr)
      many->round(x, blocks_of(*l), place_of_row(*l, *many, r, static_cast<uint16_t*>(scratch)));
    else
      linear_loops().quantize(x, blocks_of(*l), Bytes(*l, scratch).place(*l, r));
  }
}

int64_t kvedge_linear_product_tasks(const kvedge_linear* l) {
  if (l->rows == 0) return 0;
  const int64_t each = kvedge::tiles_a_task(*l);
  return (kvedge::tiles_of(l->outputs) + each - 1) / each;
}

void kvedge_linear_product_task(const kvedge_linear* l, const void* scratch, int64_t task) {
  using namespace kvedge;
  const int64_t each = tiles_a_task(*l), first = task * each, last = std::min(first + each, tiles_of(l->outputs));
  if (l->activation == KVEDGE_NO_ACTIVATION) return plain_tiles(*l, scratch, first, last);
  for (int64_t tile = first; tile < last; ++tile) gated_tile(*l, scratch, tile);
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
