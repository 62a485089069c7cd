// The kernels of one instruction set.
#ifndef KVEDGE_BENCH_KERNELS_H
#define KVEDGE_BENCH_KERNELS_H

#include <cstdint>

#include "problem.h"

namespace kvedge::bench {

// Levels as a kernel looks them up, made once from levels [1 << bits].
struct Tables {
  alignas(64) uint8_t bytes[256];
};
using PrepareFloats = void (*)(const float* levels, Tables& tables);
using PrepareBytes = void (*)(const int8_t* levels, Tables& tables);

// lanes and depth are those of Problem.
using FloatProduct = void (*)(const uint8_t* page, int lanes, int depth, const Tables& tables, int rows,
                              const float* x, float* y);
using IntegerProduct = void (*)(const uint8_t* page, int lanes, int depth, const Tables& tables, int rows,
                                const int8_t* x, const int32_t* start, int32_t* y);
using Expand = void (*)(const uint8_t* page, int lanes, int depth, const Tables& tables, float* tile);

struct Kernel {
  const char* name;
  Order order;
  int bits;                 // 0: exact pages, whatever the bits
  bool for_keys, for_values;
  PrepareFloats prepare_floats;
  PrepareBytes prepare_bytes;
  FloatProduct floats;      // null: by the tile only
  Expand expand;            // null: no tile
  IntegerProduct integer_keys, integer_values;
};

struct Isa {
  const char* name;
  bool (*usable)();
  const Kernel* kernels;
  int count;
  // The largest integers: level, query, weight. Key levels are biased by top_level + 1.
  int top_level, top_query, top_weight;
  void (*tile_product)(const float* tile, int lanes, int depth, int rows, const float* x, float* y);
};

namespace avx2 { extern const Isa kIsa; }
namespace avxvnni { extern const Isa kIsa; }
namespace avx512 { extern const Isa kIsa; }

}  // namespace kvedge::bench
#endif
