#include "plan.h"

#include <algorithm>

namespace kvedge::launch {
namespace {

constexpr size_t kAlignment = 256;

struct Splits {
  int64_t packed, packed_pages, exact, exact_pages;
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t sink_pages(const Attributes& of) { return ceil_div(of.sinks, of.page); }

Splits splits_of(const Layer& layer, const StepSizes& step) {
  const Attributes& of = layer.attributes;
  const int64_t new_pages = ceil_div(step.new_tokens, of.page) + 1, ring_pages = step.hot_slots - sink_pages(of);
  const int64_t exact = layer.packs ? of.recent / of.page + 1 : ring_pages + new_pages;
  if (step.new_tokens > layer.bundle.kernel("attend_decode").constant("BLOCK")) {
    return {std::min(1, step.packed_slots), std::max(1, step.packed_slots), 1, exact};
  }
  const int64_t pages = layer.bundle.pages_a_split();
  return {ceil_div(step.packed_slots, pages), pages, ceil_div(exact, pages), pages};
}

int64_t rows_of(const Layer& layer, const StepSizes& step) {
  return int64_t{step.batch} * layer.attributes.heads * step.new_tokens;
}

// Pages that a step may make old, of one row and head.
int64_t sealed_of(const Layer& layer, const StepSizes& step) {
  return ceil_div(step.new_tokens, layer.attributes.page) + 1;
}

bool keeps_bias_out(const Layer& layer) { return layer.packs && layer.bias_pairs > 0; }

Launch launch_of(const Kernel& kernel, int64_t x, int64_t y = 1, int64_t z = 1) {
  return {&kernel, static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

Launch attend_of(const Layer& layer, const StepSizes& step, const Splits& splits) {
  const Attributes& of = layer.attributes;
  const bool decodes = step.new_tokens <= layer.bundle.most_decoded();
  const Kernel& kernel = layer.bundle.kernel(decodes ? "attend_decode" : "attend_prefill");
  const int64_t block = kernel.constant("BLOCK");
  // Wherever in a block the first query is.
  return launch_of(kernel, (int64_t{step.new_tokens} + block - 2) / block + 1,
                   int64_t{step.batch} * of.heads / kernel.constant("HEADS_OF_BLOCK"), splits.packed + splits.exact);
}

std::vector<Launch> launches_of(const Layer& layer, const StepSizes& step, const Splits& splits) {
  const Bundle& bundle = layer.bundle;
  const int64_t heads = int64_t{step.batch} * layer.attributes.kv_heads, rows = rows_of(layer, step);
  const auto by_rows = [&](const char* name) {
    return launch_of(bundle.kernel(name), ceil_div(rows, bundle.kernel(name).constant("BLOCK")));
  };
  const Kernel& append = bundle.kernel("append");
  std::vector<Launch> launches = {by_rows("queries")};
  if (keeps_bias_out(layer)) launches.push_back(launch_of(bundle.kernel("bias_rows"), 1));
  if (layer.packs) launches.push_back(launch_of(bundle.kernel("seal"), sealed_of(layer, step), heads));
  launches.push_back(attend_of(layer, step, splits));
  launches.push_back(by_rows("merge"));
  launches.push_back(launch_of(append, ceil_div(step.new_tokens, append.constant("BLOCK")), heads));
  return launches;
}

Values numbers_of(const Layer& layer, const StepSizes& step, const Splits& splits) {
  const Attributes& of = layer.attributes;
  Values values;
  const auto set = [&values](Argument argument, int64_t number) {
    values.at[argument].number = static_cast<int32_t>(number);
  };
  set(kSinks, of.sinks);
  set(kRecentPages, of.recent / of.page);
  set(kWindow, of.window);
  set(kHotSlots, step.hot_slots);
  set(kPackedSlots, step.packed_slots);
  set(kPackedSplits, splits.packed);
  set(kPagesASplit, splits.packed_pages);
  set(kExactPagesASplit, splits.exact_pages);
  set(kNewTokens, step.new_tokens);
  set(kSplits, splits.packed + splits.exact);
  set(kRows, rows_of(layer, step));
  values.at[kScale].real = of.scale;
  return values;
}

Workspace workspace_of(const Layer& layer, const StepSizes& step, const Splits& splits) {
  const int64_t dim = layer.attributes.head_dim, rows = rows_of(layer, step), count = splits.packed + splits.exact;
  Workspace workspace;
  const auto add = [&workspace](Argument argument, int64_t floats) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    workspace.regions.push_back({argument, workspace.bytes, bytes});
    workspace.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  for (const Argument queries : {kPlain, kTurned, kRotated}) add(queries, rows * dim);
  add(kSums, rows * count * dim);
  add(kTops, rows * count);
  add(kTotals, rows * count);
  if (layer.packs) {
    add(kScratch, sealed_of(layer, step) * step.batch * layer.attributes.kv_heads * layer.attributes.page * dim);
  }
  if (keeps_bias_out(layer)) add(kBiasRows, dim);
  return workspace;
}

}  // namespace

Plan::Plan(const Layer& layer, const StepSizes& step) {
  const Splits splits = splits_of(layer, step);
  if (rows_of(layer, step) > 0) launches = launches_of(layer, step, splits);
  workspace = workspace_of(layer, step, splits);
  numbers = numbers_of(layer, step, splits);
}

size_t most_workspace(const Layer& layer, const StepSizes& most) {
  // A step of few tokens cuts the keys into many splits, one of many tokens does not: either may need more.
  StepSizes few = most;
  few.new_tokens = std::min(most.new_tokens, layer.bundle.kernel("attend_decode").constant("BLOCK"));
  return std::max(workspace_of(layer, most, splits_of(layer, most)).bytes,
                  workspace_of(layer, few, splits_of(layer, few)).bytes);
}

}  // namespace kvedge::launch
