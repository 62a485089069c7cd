#include "tensors.h"

#include <iterator>
#include <sstream>

#include "failure.h"

namespace kvedge::launch {
namespace {

constexpr Argument kNeeded[] = {kQ, kK, kV, kHot, kHotTable, kContext, kNumNew};
constexpr Argument kTogether[][2] = {
    {kPacked, kPackedTable}, {kSinkCos, kSinkSin}, {kBiasPage, kBiasFreqs}, {kBiasPage, kBiasChannels}};

std::string name_of(Argument argument) { return std::string(kArgumentNames[argument].name); }

}  // namespace

Tensors::Tensors(const std::string& names) {
  index_.fill(-1);
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) add(name);
  for (const Argument input : kNeeded) {
    if (!has(input)) throw Failure("inputs", "'" + name_of(input) + "' among them", "'" + names + "'");
  }
  for (const auto& [a, b] : kTogether) {
    if (has(a) == has(b)) continue;
    throw Failure("inputs", name_of(a) + " and " + name_of(b), "one without the other: '" + names + "'");
  }
  for (const Output& output : kSchemaOutputs) {
    if (output.argument != kPacked || has(kPacked)) outputs_.push_back(output);
  }
}

void Tensors::add(const std::string& name) {
  if (name == "cos" || name == "sin") {
    throw Failure(name, "none: queries and keys are taken after rotary embedding", "it");
  }
  while (next_ < std::size(kSchemaInputs) && name != kSchemaInputs[next_]) ++next_;
  if (next_ == std::size(kSchemaInputs)) {
    throw Failure("inputs", "names of the op's inputs in its order", "'" + name + "'");
  }
  for (size_t i = 0; i < kArguments; ++i) {
    if (kArgumentNames[i].name != name) continue;
    index_[i] = static_cast<int>(inputs_.size());
    inputs_.push_back(static_cast<Argument>(i));
  }
  ++next_;
}

std::string Tensors::name(size_t position) const {
  return position < inputs_.size() ? name_of(inputs_[position]) : outputs_.at(position - inputs_.size()).name;
}

Argument Tensors::argument(size_t position) const {
  return position < inputs_.size() ? inputs_[position] : outputs_.at(position - inputs_.size()).argument;
}

}  // namespace kvedge::launch
