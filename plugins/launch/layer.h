// A layer: its attributes, its tensors and its kernels, which must fit each other.
#ifndef KVEDGE_LAUNCH_LAYER_H
#define KVEDGE_LAUNCH_LAYER_H

#include <memory>
#include <string>

#include "bundle.h"
#include "tensors.h"

namespace kvedge::launch {

struct Attributes {
  int32_t heads, kv_heads, head_dim, page, sinks, recent, window, k_bits, v_bits, float_codes, v_unbiased,
      rotary_interleaved;
  float scale, softcap;
};

struct IntegerAttribute {
  const char* name;
  int32_t Attributes::*value;
};

struct FloatAttribute {
  const char* name;
  float Attributes::*value;
};

constexpr IntegerAttribute kIntegerAttributes[] = {
    {"heads", &Attributes::heads}, {"kv_heads", &Attributes::kv_heads}, {"head_dim", &Attributes::head_dim},
    {"page", &Attributes::page}, {"sinks", &Attributes::sinks}, {"recent", &Attributes::recent},
    {"window", &Attributes::window}, {"k_bits", &Attributes::k_bits}, {"v_bits", &Attributes::v_bits},
    {"float_codes", &Attributes::float_codes}, {"v_unbiased", &Attributes::v_unbiased},
    {"rotary_interleaved", &Attributes::rotary_interleaved}};
constexpr FloatAttribute kFloatAttributes[] = {{"scale", &Attributes::scale}, {"softcap", &Attributes::softcap}};

struct Layer {
  Attributes attributes;
  std::string inputs;
  std::shared_ptr<const std::string> kernels;
  Tensors tensors;
  Bundle bundle;
  bool packs;
  int rotary_pairs, bias_pairs;

  // Throws Failure where kernels are compiled for another layer than attributes and inputs say.
  Layer(const Attributes& of, std::string names, std::shared_ptr<const std::string> bundle_bytes);
};

}  // namespace kvedge::launch
#endif
