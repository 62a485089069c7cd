// check: refuse a step that would read or write outside its pools. Kernels trust what passed here.
#include <cstdarg>
#include <cstdio>

#include "codebook.h"
#include "geometry.h"

namespace kvedge {
namespace {

bool known_bits(int32_t bits) { return bits == 0 || code_of(bits, 0) != Code::kNone; }

class Check {
 public:
  Check(const kvedge_shape& shape, const kvedge_step& arrays, char* message, size_t size)
      : s(shape), step(arrays), g(shape, arrays), text(message), room(size) {}

  bool failed() const { return bad; }

  void shape() {
    require(s.head_dim > 0 && s.head_dim % 8 == 0, "head_dim: expected a multiple of 8, got %d", s.head_dim);
    require(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "heads: expected a multiple of kv_heads %d, got %d",
            s.kv_heads, s.heads);
    require(s.page > 0 && s.page % 8 == 0, "page: expected a multiple of 8, got %d", s.page);
    require(s.recent >= s.page && s.recent % s.page == 0, "recent: expected a positive multiple of page %d, got %d",
            s.page, s.recent);
    require(s.sinks >= 0 && s.window >= 0, "sinks and window: expected 0 or more, got %d and %d", s.sinks, s.window);
    require(known_bits(s.k_bits), "k_bits: expected 0, 2, 3, 4 or 8, got %d", s.k_bits);
    require(known_bits(s.v_bits) && (s.k_bits == 0) == (s.v_bits == 0),
            "v_bits: expected 0 with exact keys, else 2, 3, 4 or 8, got %d with k_bits %d", s.v_bits, s.k_bits);
    require(s.float_codes == 0 || s.float_codes == 1, "float_codes: expected 0 or 1, got %d", s.float_codes);
    require(!s.float_codes || (s.k_bits == s.v_bits && s.k_bits % 8 == 0),
            "float_codes: expected 8 bits for keys and values, got %d and %d", s.k_bits, s.v_bits);
    require(2 * s.rotary_pairs <= s.head_dim, "rotary pairs: expected at most head_dim / 2 = %d, got %d",
            s.head_dim / 2, s.rotary_pairs);
    require(2 * s.bias_pairs <= s.head_dim, "bias_freqs: expected at most head_dim / 2 = %d pairs, got %d",
            s.head_dim / 2, s.bias_pairs);
    for (int32_t i = 0; i < 2 * s.bias_pairs && !bad; ++i)
      require(step.bias_channels[i] >= 0 && step.bias_channels[i] < s.head_dim,
              "bias_channels: expected channels below %d, got %d", s.head_dim, step.bias_channels[i]);
    require(g.ring_pages > 0, "hot_table: expected more than %d columns (the sinks' pages), got %d", int(g.sink_pages),
            s.hot_slots);
    require(g.packs || !packs(s), "packed: expected a pool for %d-bit keys, got none", s.k_bits);
    require(!g.packs || s.packed_slots > 0, "packed_table: expected at least one column, got %d", s.packed_slots);
  }

  void row(int64_t b) {
    const int64_t before = step.context[b], count = step.num_new[b];
    require(before >= 0 && count >= 0 && count <= s.new_tokens,
            "row %d: expected context >= 0 and 0 <= num_new <= %d, got %d and %d", int(b), s.new_tokens, int(before),
            int(count));
    if (bad || count == 0) return;
    sinks(b, before + count);
    ring(b, before, before + count);
    if (g.packs) packed(b, before, before + count);
  }

 private:
  void sinks(int64_t b, int64_t end) {
    for (int64_t order = 0; order < std::min(end, g.sinks); order += g.page) hot_page(b, order / g.page);
  }

  // Old tokens that this step reads exactly or seals must still be in the ring; so must a place for new ones.
  void ring(int64_t b, int64_t before, int64_t end) {
    const int64_t capacity = g.ring_pages * g.page;
    int64_t oldest = g.window_start(before);
    if (g.packs) oldest = std::min(std::max(oldest, g.page_start(g.page_of(before) - g.recent_pages)),
                                   g.page_start(g.sealed_pages(before)));
    oldest = std::max(oldest, g.sinks);
    require(before - oldest <= capacity, "row %d: hot_table: expected a ring of at least %d tokens, got %d", int(b),
            int(before - oldest), int(capacity));
    const int64_t start = std::max(oldest, end - capacity);
    for (int64_t order = start; !bad && order < end; order += g.page - (order - g.sinks) % g.page)
      hot_page(b, g.hot_slot(order).column);
  }

  void packed(int64_t b, int64_t before, int64_t end) {
    const int64_t first = std::min(g.page_of(g.window_start(before)), g.sealed_pages(before));
    const int64_t last = g.sealed_pages(end);
    require(last - first <= s.packed_slots, "row %d: packed_table: expected at least %d columns, got %d", int(b),
            int(last - first), s.packed_slots);
    for (int64_t number = first; !bad && number < last; ++number) {
      const int32_t id = step.packed_table[b * s.packed_slots + number % s.packed_slots];
      require(id >= 0 && id < s.packed_pages, "row %d: packed_table[%d]: expected a page id below %d, got %d", int(b),
              int(number % s.packed_slots), s.packed_pages, id);
    }
  }

  void hot_page(int64_t b, int64_t column) {
    const int32_t id = step.hot_table[b * s.hot_slots + column];
    require(id >= 0 && id < s.hot_pages, "row %d: hot_table[%d]: expected a page id below %d, got %d", int(b),
            int(column), s.hot_pages, id);
  }

  __attribute__((format(printf, 3, 4))) void require(bool fine, const char* format, ...) {
    if (bad || fine) return;
    bad = true;
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, room, format, values);
    va_end(values);
  }

  const kvedge_shape& s;
  const kvedge_step& step;
  const Geometry g;
  char* text;
  size_t room;
  bool bad = false;
};

}  // namespace
}  // namespace kvedge

extern "C" int kvedge_check(const kvedge_shape* shape, const kvedge_step* step, char* message, size_t size) {
  if (shape->page <= 0) return std::snprintf(message, size, "page: expected a multiple of 8, got %d", shape->page), 1;
  kvedge::Check check(*shape, *step, message, size);
  check.shape();
  for (int64_t b = 0; b < shape->batch && !check.failed(); ++b) check.row(b);
  return check.failed() ? 1 : 0;
}
