// PagedAttention on the CPU: the C interface of its four kernels (prepare, seal, attend, append).
//
// One step serves B sequences. Row b holds context[b] tokens already and brings num_new[b] <= N new
// ones, whose orders are context[b], context[b]+1, ... . A step runs in four phases, in this order:
//   prepare lay out the new queries, keys and values by head, with their rotary embedding
//   seal    quantize the pages that this step makes old, from the ring and from the new keys/values
//   attend  every new token reads sinks, packed pages, exact pages and its own chunk by one rule
//   append  write the new keys and values to their slots in the hot pool
// Tasks of one phase are independent of each other and may run on any thread; phases may not overlap.
//
// Which page a token belongs to, what a query sees and what it reads packed is stated once in
// targets/visibility.py; the bit layout of a packed page in layout.h. Shapes use one alphabet:
//   B sequences, N new tokens a row, Q query heads, H kv heads, D head_dim, T tokens a page.
#ifndef KVEDGE_PAGED_ATTENTION_H
#define KVEDGE_PAGED_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVEDGE_API __attribute__((visibility("default")))
#else
#define KVEDGE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int32_t batch;               // B
  int32_t new_tokens;          // N, padded
  int32_t heads;               // Q
  int32_t kv_heads;            // H, divides Q
  int32_t head_dim;            // D, a multiple of 8
  int32_t page;                // T, a multiple of 8
  int32_t sinks;               // S, 0 = none
  int32_t recent;              // R, a multiple of T
  int32_t window;              // W, 0 = no window
  int32_t k_bits;              // 0 = exact (nothing is ever sealed), else 2, 3, 4 or 8
  int32_t v_bits;              // 0 exactly where k_bits is 0
  int32_t float_codes;         // 1: codes of 8 bits are floats (e4m3), 0: integers
  int32_t v_unbiased;          // 1: unbiased value scale, 0: least squares
  int32_t hot_is_half;         // 1: hot pool holds fp16, 0: fp32
  int32_t hot_pages;           // pages in the hot pool
  int32_t packed_pages;        // pages in the packed pool
  int32_t hot_slots;           // width of hot_table: ceil(S / T) sink pages, then the ring
  int32_t packed_slots;        // width of packed_table (circular)
  int32_t rotary_pairs;        // pairs of the rotary embedding; 0 = the layer has none
  int32_t rotary_interleaved;  // 1: pairs (2i, 2i+1), 0: pairs (i, i + rotary_pairs)
  int32_t bias_pairs;          // F, pairs of a key bias kept out of the codes; 0 = none
  float scale;                 // softmax scale
  float softcap;               // 0 = none, else scores become softcap * tanh(score / softcap)
} kvedge_shape;

typedef struct {
  const float* q;                // [B, Q, N, D]
  const float* k;                // [B, H, N, D], after rotary embedding
  const float* v;                // [B, H, N, D]
  void* hot;                     // [hot_pages, 2, H, T, D], fp16 or fp32, read and written in place
  int32_t* packed;               // [packed_pages, words], read and written in place; null when exact
  const int32_t* hot_table;      // [B, hot_slots] page ids, -1 = none
  const int32_t* packed_table;   // [B, packed_slots] page ids, -1 = none; null when exact
  const int32_t* context;        // [B]
  const int32_t* num_new;        // [B]
  const float* sink_cos;         // [B, N, rotary_pairs], or null: sinks are read with the query as it is
  const float* sink_sin;         // [B, N, rotary_pairs], or null
  const float* bias_page;        // [H, 2F, T] the bias at each offset of a page at position 0, or null
  const float* bias_freqs;       // [F] radians per position
  const int32_t* bias_channels;  // [2F] channels of the rows of bias_page
  float* partial;                // scratch of attend, or null where it needs none
  float* out;                    // [B, N, Q, D]; rows beyond num_new are set to zero
  int32_t* pages_read;           // [B] packed pages read, summed over kv heads and query pages
} kvedge_step;

// New tokens as the products before attention make them.
typedef struct {
  const float* q;    // [B, N, Q * D], or [B, N, (Q + 2H) * D] with keys and values behind the queries
  const float* k;    // [B, N, H * D], or null where q holds all
  const float* v;    // [B, N, H * D], or null
  const float* cos;  // [B, N, rotary_pairs], or null: no rotary embedding, or it is in q and k already
  const float* sin;  // [B, N, rotary_pairs], or null
} kvedge_projected;

// Fills q [B, Q, N, D], k and v [B, H, N, D].
KVEDGE_API int64_t kvedge_prepare_tasks(const kvedge_shape* shape);
KVEDGE_API void kvedge_prepare_task(const kvedge_shape* shape, const kvedge_projected* from, float* q, float* k,
                                    float* v, int64_t task);

// 0 when the step is sound, else 1 and a message (what, expected, got). Nothing is touched.
KVEDGE_API int kvedge_check(const kvedge_shape* shape, const kvedge_step* step, char* message, size_t size);

KVEDGE_API int64_t kvedge_seal_tasks(const kvedge_shape* shape, const kvedge_step* step);
KVEDGE_API void kvedge_seal_task(const kvedge_shape* shape, const kvedge_step* step, int64_t task);

// attend_tasks also clears pages_read, to which the tasks add. The tasks need so many floats of scratch in
// step.partial; attend_finish comes after all of them.
KVEDGE_API int64_t kvedge_attend_tasks(const kvedge_shape* shape, const kvedge_step* step);
KVEDGE_API int64_t kvedge_attend_scratch(const kvedge_shape* shape, int64_t tasks);
KVEDGE_API void kvedge_attend_task(const kvedge_shape* shape, const kvedge_step* step, int64_t task);
KVEDGE_API void kvedge_attend_finish(const kvedge_shape* shape, const kvedge_step* step);

KVEDGE_API void kvedge_append(const kvedge_shape* shape, const kvedge_step* step);

// Name of the inner loops in use: baseline, avx2, avx512, avx512vnni or avx512amx.
KVEDGE_API const char* kvedge_cpu_isa(void);

// Whether packed pages are read in integers, as plugins/reference/integers.py says; those of floats never are.
KVEDGE_API int kvedge_reads_integers(void);

// Reads words (a multiple of 64) and returns their exclusive or: how fast memory is.
KVEDGE_API int32_t kvedge_read(const int32_t* words, int64_t count);

// What this library believes about the layout, for the tests that compare it with targets/.
KVEDGE_API int32_t kvedge_layout_version(void);
KVEDGE_API int64_t kvedge_page_words(int32_t kv_heads, int32_t head_dim, int32_t page, int32_t k_bits, int32_t v_bits);
KVEDGE_API void kvedge_bit_place(int32_t bits, int32_t octets, int32_t element, int32_t bit, int32_t* word_and_bit);
KVEDGE_API void kvedge_codebook(int32_t bits, float* levels, float* boundaries);
KVEDGE_API float kvedge_byte_codebook(int32_t bits, int8_t* levels);  // up to 4 bits; returns the step

#ifdef __cplusplus
}
#endif
#endif
