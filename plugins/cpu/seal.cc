// seal: quantize the pages that a step makes old. Twin of plugins/reference/seal.py, bit for bit: built
// without fused multiply-add, every sum in the reference's order, lanes are tokens.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codebook.h"
#include "half.h"
#include "rotation.h"
#include "seal_loops.h"
#include "tokens.h"

namespace kvedge {
namespace {

struct Scratch {
  std::vector<float> rows, block, squares, largest, along, spread, inverse, odd;
  std::vector<uint8_t> codes, codes_by_token;

  Encoded encoded() {
    return {codes.data(), squares.data(), along.data(), spread.data(), largest.data(), inverse.data()};
  }

  Scratch(int64_t dim, int64_t page)
      : rows(dim * page), block(dim * page), squares(page), largest(page), along(page), spread(page), inverse(page),
        odd(dim * page), codes(dim * page), codes_by_token(dim * page) {}
};

// One per thread and form of page, kept: sealing allocates nothing in the long run.
Scratch& scratch_for(int64_t dim, int64_t page) {
  thread_local std::vector<Scratch> kept;
  for (Scratch& w : kept)
    if (int64_t(w.squares.size()) == page && int64_t(w.block.size()) == dim * page) return w;
  return kept.emplace_back(dim, page);
}

// block [D][T] loses its mean over tokens, rounded to fp16; mean [D] receives the halves.
void subtract_mean(float* block, int64_t dim, int64_t page, uint16_t* mean) {
  for (int64_t d = 0; d < dim; ++d) {
    float* x = block + d * page;
    float total = x[0];
    for (int64_t t = 1; t < page; ++t) total = total + x[t];
    mean[d] = to_half(total / float(page));
    const float m = from_half(mean[d]);
    for (int64_t t = 0; t < page; ++t) x[t] = x[t] - m;
  }
}

// block [D][T] of a page at position `start` loses the rotated key bias.
void subtract_bias(const kvedge_shape& s, const kvedge_step& step, int64_t head, int64_t start, float* block) {
  const int64_t pairs = s.bias_pairs, page = s.page;
  for (int64_t i = 0; i < pairs; ++i) {
    const Turn turn = bias_turn(step, i, start);
    const float* a = step.bias_page + (head * 2 * pairs + i) * page;
    const float* b = a + pairs * page;
    float* first = block + step.bias_channels[i] * page;
    float* second = block + step.bias_channels[pairs + i] * page;
    for (int64_t t = 0; t < page; ++t) first[t] = first[t] - (a[t] * turn.cos - b[t] * turn.sin);
    for (int64_t t = 0; t < page; ++t) second[t] = second[t] - (b[t] * turn.cos + a[t] * turn.sin);
  }
}

inline void write_scales(const Scratch& w, int64_t page, bool unbiased, uint16_t* out) {
  for (int64_t t = 0; t < page; ++t) {
    const float top = unbiased ? w.squares[t] : w.along[t];
    const float bottom = unbiased ? w.along[t] : w.spread[t];
    out[t] = w.squares[t] > 0.0f && std::sqrt(w.squares[t]) > 0.0f ? to_half(top / bottom) : uint16_t(0);
  }
}

// Words of codes [depth][lanes] as they lie in a page.
inline void write_codes(const uint8_t* codes, int64_t depth, int64_t lanes, int bits, int32_t* out) {
  std::fill_n(out, lane_words(bits, depth) * lanes, 0);
  for (int64_t first = 0; first < depth; first += kGroup) {
    const int octets = int(std::min<int64_t>(kGroup, depth - first)) / kOctet;
    for (int i = 0; i < kOctet * octets; ++i)
      for (int bit = 0; bit < bits; ++bit) {
        const BitPlace place = bit_place(bits, octets, i, bit);
        const uint8_t* code = codes + (first + i) * lanes;
        int32_t* word = out + place.word * lanes;
        for (int64_t lane = 0; lane < lanes; ++lane) word[lane] |= int32_t(uint32_t(code[lane] >> bit & 1) << place.bit);
      }
    out += group_words(bits, octets) * lanes;
  }
}

// out [columns][rows] = in [rows][columns], transposed.
inline void transpose_codes(const uint8_t* in, int64_t rows, int64_t columns, uint8_t* out) {
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) out[c * rows + r] = in[r * columns + c];
}

void quantize_keys(float* block, int64_t dim, int64_t page, Code code, uint16_t* mean, Scratch& w) {
  subtract_mean(block, dim, page, mean);
  rotate(rotation_for(dim), block, page, w.odd.data());
  seal_loops().encode(block, dim, page, code, w.encoded());
}

void quantize_values(float* block, int64_t dim, int64_t page, Code code, Scratch& w) {
  rotate(rotation_for(dim), block, page, w.odd.data());
  seal_loops().encode(block, dim, page, code, w.encoded());
}

void seal_head(const kvedge_shape& s, const kvedge_step& step, int64_t b, int64_t number, int64_t head) {
  const Geometry g(s, step);
  const PackedLayout layout = layout_of(s);
  Scratch& w = scratch_for(s.head_dim, s.page);
  int32_t* out = packed_head(s, step, b, number, head);
  const auto load = [&](int part) {
    load_tokens(s, step, g, b, head, part, g.page_start(number), g.page_start(number + 1), w.rows.data(), s.head_dim);
    loops().transpose(w.rows.data(), s.page, s.head_dim, w.block.data(), s.page);
  };
  const auto halves = [&](int64_t offset) { return reinterpret_cast<uint16_t*>(out + offset); };
  load(0);
  if (s.bias_pairs > 0) subtract_bias(s, step, head, g.page_start(number), w.block.data());
  quantize_keys(w.block.data(), s.head_dim, s.page, key_code(s), halves(layout.k_mean), w);
  write_codes(w.codes.data(), s.head_dim, s.page, s.k_bits, out);
  write_scales(w, s.page, true, halves(layout.k_scales));
  load(1);
  quantize_values(w.block.data(), s.head_dim, s.page, value_code(s), w);
  transpose_codes(w.codes.data(), s.head_dim, s.page, w.codes_by_token.data());
  write_codes(w.codes_by_token.data(), s.page, s.head_dim, s.v_bits, out + layout.v_codes);
  write_scales(w, s.page, s.v_unbiased != 0, halves(layout.v_scales));
}

struct PageRange {
  int64_t first, last;
};

PageRange pages_to_seal(const Geometry& g, const kvedge_step& step, int64_t b) {
  if (step.num_new[b] == 0) return {0, 0};
  const int64_t before = step.context[b];
  return {g.sealed_pages(before), g.sealed_pages(before + step.num_new[b])};
}

}  // namespace
}  // namespace kvedge

extern "C" {

int64_t kvedge_seal_tasks(const kvedge_shape* shape, const kvedge_step* step) {
  const kvedge::Geometry g(*shape, *step);
  int64_t pages = 0;
  for (int64_t b = 0; b < shape->batch; ++b) {
    const auto range = kvedge::pages_to_seal(g, *step, b);
    pages += range.last - range.first;
  }
  return pages * shape->kv_heads;
}

void kvedge_seal_task(const kvedge_shape* shape, const kvedge_step* step, int64_t task) {
  const kvedge::Geometry g(*shape, *step);
  int64_t page = task / shape->kv_heads;
  for (int64_t b = 0; b < shape->batch; ++b) {
    const auto range = kvedge::pages_to_seal(g, *step, b);
    if (page < range.last - range.first)
      return kvedge::seal_head(*shape, *step, b, range.first + page, task % shape->kv_heads);
    page -= range.last - range.first;
  }
}

float kvedge_byte_codebook(int32_t bits, int8_t* levels) {
  std::copy_n(kvedge::byte_levels_of(bits), kvedge::level_count(bits), levels);
  return kvedge::byte_step_of(kvedge::code_of(bits, 0));
}

void kvedge_codebook(int32_t bits, float* levels, float* boundaries) {
  const int count = kvedge::level_count(bits);
  std::memcpy(levels, kvedge::levels_of(bits), sizeof(float) * count);
  std::memcpy(boundaries, kvedge::boundaries_of(bits), sizeof(float) * (count - 1));
}

int32_t kvedge_layout_version(void) { return kvedge::kLayoutVersion; }

int64_t kvedge_page_words(int32_t kv_heads, int32_t head_dim, int32_t page, int32_t k_bits, int32_t v_bits) {
  return kvedge::PackedLayout(head_dim, page, k_bits, v_bits).page_words(kv_heads);
}

void kvedge_bit_place(int32_t bits, int32_t octets, int32_t element, int32_t bit, int32_t* word_and_bit) {
  const kvedge::BitPlace place = kvedge::bit_place(bits, octets, element, bit);
  word_and_bit[0] = place.word;
  word_and_bit[1] = place.bit;
}

}  // extern "C"
