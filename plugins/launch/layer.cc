#include "layer.h"

#include <sstream>

#include "failure.h"
#include "kvedge/layout.h"

namespace kvedge::launch {
namespace {

std::string text_of(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

void same(const Kernel& kernel, const std::string& constant, double wanted, const std::string& name) {
  const auto found = kernel.constants.find(constant);
  if (found == kernel.constants.end() || found->second == wanted) return;
  throw Failure(name, text_of(found->second) + ", which kernel " + kernel.name + " is compiled for", text_of(wanted));
}

// As targets/spec.py: a window of R + 1 keys or fewer never reaches a packed page.
bool packs_pages(const Attributes& of) { return of.k_bits > 0 && (of.window == 0 || of.window > of.recent + 1); }

void check_sizes(const Attributes& of) {
  const auto least = [](const char* name, int32_t value, int32_t lowest) {
    if (value < lowest) throw Failure(name, std::to_string(lowest) + " or more", std::to_string(value));
  };
  for (const IntegerAttribute& one : kIntegerAttributes) least(one.name, of.*one.value, 0);
  least("heads", of.heads, 1);
  least("kv_heads", of.kv_heads, 1);
  least("head_dim", of.head_dim, 8);
  least("page", of.page, 8);
  least("recent", of.recent, of.page);
  if (of.recent % of.page) {
    throw Failure("recent", "a multiple of page " + std::to_string(of.page), std::to_string(of.recent));
  }
}

void check_blocks(const Kernel& kernel) {
  for (const char* name : {"BLOCK", "HEADS_OF_BLOCK"}) {
    const auto found = kernel.constants.find(name);
    if (found == kernel.constants.end() || found->second >= 1) continue;
    throw Failure("kernel " + kernel.name + ", " + name, "1 or more", text_of(found->second));
  }
}

void check_kernel(const Kernel& kernel, const Layer& layer) {
  const Attributes& of = layer.attributes;
  same(kernel, "HEADS", of.heads, "heads");
  same(kernel, "KV_HEADS", of.kv_heads, "kv_heads");
  same(kernel, "DIM", of.head_dim, "head_dim");
  same(kernel, "TOKENS", of.page, "page");
  same(kernel, "PACKS", layer.packs, "packed pages, by k_bits, window and recent");
  same(kernel, "K_BITS", layer.packs ? of.k_bits : 0, "k_bits");
  same(kernel, "V_BITS", layer.packs ? of.v_bits : 0, "v_bits");
  same(kernel, "FLOAT_CODES", layer.packs ? of.float_codes : 0, "float_codes");
  same(kernel, "V_UNBIASED", of.v_unbiased, "v_unbiased");
  same(kernel, "SOFTCAP", of.softcap, "softcap");
  same(kernel, "BIAS_PAIRS", layer.bias_pairs, "pairs of the key bias");
  if (layer.rotary_pairs > 0) same(kernel, "INTERLEAVED", of.rotary_interleaved, "rotary_interleaved");
  if (layer.packs) {
    const PackedLayout words(of.head_dim, of.page, of.k_bits, of.v_bits);
    same(kernel, "HEAD_WORDS", static_cast<double>(words.head_words), "words of a packed page's head");
  }
}

void given(const Layer& layer, Argument input, bool wanted, const std::string& because) {
  if (layer.tensors.has(input) == wanted) return;
  const std::string name(kArgumentNames[input].name);
  throw Failure(name, (wanted ? "a tensor, because " : "none, because ") + because, wanted ? "none" : "a tensor");
}

void check_inputs(const Layer& layer) {
  given(layer, kPacked, layer.packs, "by k_bits, window and recent this layer " +
                                         std::string(layer.packs ? "packs" : "does not pack"));
  const auto pairs = [](int count) { return "its kernels are compiled for " + std::to_string(count) + " pairs"; };
  given(layer, kSinkCos, layer.rotary_pairs > 0, pairs(layer.rotary_pairs));
  given(layer, kBiasPage, layer.bias_pairs > 0, pairs(layer.bias_pairs));
  const auto odd = static_cast<size_t>(layer.bundle.kernel("queries").constant("ODD"));
  if (layer.bundle.dct().size() != odd * odd * sizeof(float)) {
    throw Failure("kernels, dct", std::to_string(odd * odd * sizeof(float)) + " bytes",
                  std::to_string(layer.bundle.dct().size()));
  }
}

}  // namespace

Layer::Layer(const Attributes& of, std::string names, std::shared_ptr<const std::string> bundle_bytes)
    : attributes(of),
      inputs(std::move(names)),
      kernels(std::move(bundle_bytes)),
      tensors(inputs),
      bundle(kernels),
      packs(packs_pages(of)),
      rotary_pairs(bundle.kernel("queries").constant("PAIRS")),
      bias_pairs(bundle.kernel("attend_decode").constant("BIAS_PAIRS")) {
  check_sizes(attributes);
  for (const char* name : {"attend_decode", "attend_prefill", "merge", "append"}) bundle.kernel(name);
  if (packs) bundle.kernel("seal");
  if (packs && bias_pairs > 0) bundle.kernel("bias_rows");
  for (const auto& [name, kernel] : bundle.kernels()) {
    check_blocks(kernel);
    check_kernel(kernel, *this);
  }
  check_inputs(*this);
}

}  // namespace kvedge::launch
