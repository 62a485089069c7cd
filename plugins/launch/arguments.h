// Parameters of the kernels, by name. A bundle says which of them a kernel takes, in which order.
#ifndef KVEDGE_LAUNCH_ARGUMENTS_H
#define KVEDGE_LAUNCH_ARGUMENTS_H

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvedge::launch {

// Tensors of the step, then of the workspace or of the layer, then numbers.
enum Argument : size_t {
  kQ, kK, kV, kHot, kPacked, kPackedHalves, kHotTable, kPackedTable, kContext, kNumNew, kSinkCos, kSinkSin,
  kBiasPage, kBiasFreqs, kBiasChannels, kOut, kPagesRead,
  kPlain, kTurned, kRotated, kSums, kTops, kTotals, kScratch, kBiasRows, kDct,
  kSinks, kRecentPages, kWindow, kHotSlots, kPackedSlots, kPackedSplits, kPagesASplit, kExactPagesASplit, kNewTokens,
  kSplits, kRows, kScale,
  kArguments
};

struct ArgumentName {
  std::string_view name;
  std::string_view type;  // Triton's; a hot pool's is the bundle's choice
};

constexpr std::string_view kFloats = "*fp32", kHalves = "*fp16", kInts = "*i32", kInt = "i32", kFloat = "fp32",
                           kHotFloats = "*fp32 or *fp16";

constexpr ArgumentName kArgumentNames[kArguments] = {
    {"q", kFloats}, {"k", kFloats}, {"v", kFloats}, {"hot", kHotFloats}, {"packed", kInts},
    {"packed_halves", kHalves}, {"hot_table", kInts}, {"packed_table", kInts}, {"context", kInts}, {"num_new", kInts},
    {"sink_cos", kFloats}, {"sink_sin", kFloats}, {"bias_page", kFloats}, {"bias_freqs", kFloats},
    {"bias_channels", kInts}, {"out", kFloats}, {"pages_read", kInts},
    {"plain", kFloats}, {"turned", kFloats}, {"rotated", kFloats}, {"sums_of_splits", kFloats}, {"tops", kFloats},
    {"totals", kFloats}, {"scratch", kFloats}, {"bias_rows", kInts}, {"dct", kFloats},
    {"sinks", kInt}, {"recent_pages", kInt}, {"window", kInt}, {"hot_slots", kInt}, {"packed_slots", kInt},
    {"packed_splits", kInt}, {"pages_a_split", kInt}, {"exact_pages_a_split", kInt}, {"new_tokens", kInt},
    {"splits", kInt}, {"rows", kInt}, {"scale", kFloat},
};

// Storage that a launch may point at: the driver reads as many bytes as the parameter has.
union Value {
  uint64_t pointer;
  int32_t number;
  float real;
};

struct Values {
  Value at[kArguments] = {};
};

}  // namespace kvedge::launch
#endif
