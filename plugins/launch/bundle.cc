#include "bundle.h"

#include "failure.h"
#include "safetensors.h"

namespace kvedge::launch {
namespace {

Argument argument_of(const std::string& name, const std::string& type, Kernel* kernel) {
  for (size_t i = 0; i < kArguments; ++i) {
    if (kArgumentNames[i].name != name) continue;
    const bool fits = i == kHot ? type == kFloats || type == kHalves : type == kArgumentNames[i].type;
    if (!fits) {
      throw Failure("kernel " + kernel->name + ", argument " + name, std::string(kArgumentNames[i].type), type);
    }
    if (i == kHot) kernel->hot_is_half = type == kHalves;
    return static_cast<Argument>(i);
  }
  throw Failure("kernel " + kernel->name, "arguments that this library knows", "'" + name + "'; update kvedge");
}

void read_arguments(const Json& facts, const std::string& where, Kernel* kernel) {
  const auto& names = facts.at("arguments", Json::Kind::kList, where).items;
  const auto& types = facts.at("types", Json::Kind::kList, where).items;
  if (names.size() != types.size()) {
    throw Failure(where, std::to_string(names.size()) + " types of arguments", std::to_string(types.size()));
  }
  if (names.size() > kArguments) throw Failure(where, "each argument once", std::to_string(names.size()) + " of them");
  for (size_t i = 0; i < names.size(); ++i) {
    kernel->arguments.push_back(argument_of(names[i].text, types[i].text, kernel));
  }
}

Kernel read_kernel(const std::string& name, const std::string& text, std::string_view code) {
  const std::string where = "kernels, facts of " + name;
  const Json facts = parse_json(text, where);
  Kernel kernel;
  kernel.name = name;
  kernel.code = code;
  kernel.symbol = facts.text_at("symbol", where);
  kernel.cuda = facts.text_at("cuda", where);
  kernel.sm = static_cast<int>(facts.number_at("sm", where));
  kernel.warps = static_cast<int>(facts.number_at("warps", where));
  kernel.shared = static_cast<int>(facts.number_at("shared", where));
  read_arguments(facts, where, &kernel);
  for (const auto& [constant, value] : facts.at("constants", Json::Kind::kObject, where).members) {
    kernel.constants[constant] = value.number;
  }
  return kernel;
}

int positive(const Json& step, const std::string& name) {
  const int value = static_cast<int>(step.number_at(name, "kernels, step"));
  if (value < 1) throw Failure("kernels, step, " + name, "1 or more", std::to_string(value));
  return value;
}

}  // namespace

int Kernel::constant(const std::string& constant_name) const {
  const auto found = constants.find(constant_name);
  if (found == constants.end()) throw Failure("kernel " + name, "constant " + constant_name, "none");
  return static_cast<int>(found->second);
}

const Kernel& Bundle::kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) throw Failure("kernels", "one named " + name, "none");
  return found->second;
}

Bundle::Bundle(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {
  const Safetensors file(*bytes_, "kernels");
  const Json step = parse_json(file.metadata("step"), "kernels, step");
  pages_a_split_ = positive(step, "pages_a_split");
  most_decoded_ = positive(step, "most_decoded");
  alignment_ = positive(step, "alignment");
  for (const auto& [name, data] : file.tensors()) {
    if (name == "dct") dct_ = data;
    else kernels_.emplace(name, read_kernel(name, file.metadata(name), data));
  }
}

}  // namespace kvedge::launch
