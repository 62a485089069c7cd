// Drives the plugin as TensorRT would and prints, as JSON, what it answered: see test_tensorrt_plugin.py.
//   program json FILE | program safetensors FILE | program names | program life name=value...
#include "tensorrt_stand_in.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>

#include "launch/safetensors.h"
#include "tensorrt/fields.h"

namespace {

using namespace nvinfer1;
using stand_in::listed;
using stand_in::Options;
using stand_in::quoted;

stand_in::Logger logger;

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the driver's stand-in was asked so far.
std::string calls() {
  std::ifstream file(std::string(std::getenv("KVEDGE_STAND_IN")) + ".calls");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return listed(lines);
}

std::string again(const kvedge::launch::Json& json) {
  using Kind = kvedge::launch::Json::Kind;
  std::vector<std::string> parts;
  std::ostringstream number;
  number.precision(17);
  number << json.number;
  switch (json.kind) {
    case Kind::kNull: return "null";
    case Kind::kBool: return json.number != 0 ? "true" : "false";
    case Kind::kNumber: return number.str();
    case Kind::kText: return quoted(json.text);
    case Kind::kList:
      for (const auto& item : json.items) parts.push_back(again(item));
      return listed(parts);
    default:
      for (const auto& [name, value] : json.members) parts.push_back(quoted(name) + ": " + again(value));
      const std::string list = listed(parts);
      return "{" + list.substr(1, list.size() - 2) + "}";
  }
}

// Fields of a node as TensorRT's parser makes them of ONNX attributes.
struct Node {
  std::map<std::string, int32_t> integers;
  std::map<std::string, float> reals;
  std::map<std::string, std::string> bytes;
  std::vector<PluginField> fields;

  explicit Node(const Options& options) {
    for (const auto& field : kvedge::trt::fields_of(nullptr)) {
      const std::string name = field.name;
      if (!options.count(name)) continue;
      const std::string& text = options.at(name);
      if (field.type == PluginFieldType::kCHAR) bytes[name] = name == "kernels" ? content(text) : text;
      else if (field.type == PluginFieldType::kINT32) integers[name] = std::stoi(text);
      else reals[name] = std::stof(text);
    }
    const bool mistyped = options.count("mistyped");
    for (const auto& [name, value] : integers) {
      fields.emplace_back(name.c_str(), &value, mistyped ? PluginFieldType::kFLOAT32 : PluginFieldType::kINT32, 1);
    }
    for (const auto& [name, value] : reals) fields.emplace_back(name.c_str(), &value, PluginFieldType::kFLOAT32, 1);
    for (const auto& [name, value] : bytes) {
      fields.emplace_back(name.c_str(), value.data(), PluginFieldType::kCHAR, static_cast<int32_t>(value.size()));
    }
  }
};

std::string summary(const PluginFieldCollection& fields) {
  std::vector<std::string> parts;
  for (int32_t i = 0; i < fields.nbFields; ++i) {
    const PluginField& one = fields.fields[i];
    std::string value = "null";
    if (one.type == PluginFieldType::kINT32 && one.data) value = std::to_string(*static_cast<const int32_t*>(one.data));
    if (one.type == PluginFieldType::kFLOAT32 && one.data) value = std::to_string(*static_cast<const float*>(one.data));
    if (one.type == PluginFieldType::kCHAR && one.data) {
      const std::string bytes(static_cast<const char*>(one.data), static_cast<size_t>(one.length));
      value = bytes.size() < 200 ? quoted(bytes) : std::to_string(std::hash<std::string>()(bytes));
    }
    parts.push_back("[" + quoted(one.name) + ", " + std::to_string(static_cast<int>(one.type)) + ", " + value + "]");
  }
  return listed(parts);
}

// The tensors of a node: shape.NAME=sizes, most.NAME=sizes where they differ, type.NAME=number.
struct Network {
  std::vector<std::string> names;
  std::vector<DynamicPluginTensorDesc> tensors;
  int32_t inputs, outputs;

  explicit Network(const Options& options) {
    const auto in = options.list("tensors_in"), out = options.list("tensors_out");
    names = in;
    names.insert(names.end(), out.begin(), out.end());
    inputs = static_cast<int32_t>(in.size());
    outputs = static_cast<int32_t>(out.size());
    for (const std::string& name : names) {
      DynamicPluginTensorDesc one = {};
      one.desc.dims = one.min = one.opt = one.max = dims(options, "shape." + name);
      if (options.count("most." + name)) one.max = dims(options, "most." + name);
      one.desc.type = static_cast<DataType>(std::stoi(options.text("type." + name, "0")));
      one.desc.format = TensorFormat::kLINEAR;
      tensors.push_back(one);
    }
  }

  static Dims dims(const Options& options, const std::string& name) {
    Dims dims = {};
    for (const std::string& size : options.list(name)) dims.d[dims.nbDims++] = std::stoll(size);
    return dims;
  }
  std::vector<PluginTensorDesc> descs() const {
    std::vector<PluginTensorDesc> all;
    for (const auto& one : tensors) all.push_back(one.desc);
    return all;
  }
};

void print(const char* name, const std::string& value) {
  std::printf("%s: %s,\n", quoted(name).c_str(), value.c_str());
}

template <typename T>
T* capability(IPluginV3* plugin, PluginCapabilityType type) {
  return static_cast<T*>(plugin->getCapabilityInterface(type));
}

void print_shapes(IPluginV3OneBuild* build, const Network& net) {
  stand_in::Sizes sizes;
  std::vector<DimsExprs> in(net.tensors.size()), out(static_cast<size_t>(net.outputs));
  for (size_t i = 0; i < net.tensors.size(); ++i) {
    const Dims& dims = net.tensors[i].desc.dims;
    in[i].nbDims = dims.nbDims;
    for (int32_t d = 0; d < dims.nbDims; ++d) in[i].d[d] = sizes.constant(dims.d[d]);
  }
  print("shapes_result", std::to_string(build->getOutputShapes(in.data(), net.inputs, nullptr, 0, out.data(),
                                                               net.outputs, sizes)));
  std::vector<std::string> shapes;
  for (const DimsExprs& one : out) {
    std::vector<std::string> shape;
    for (int32_t d = 0; d < one.nbDims; ++d) shape.push_back(std::to_string(one.d[d]->getConstantValue()));
    shapes.push_back(listed(shape));
  }
  print("shapes", listed(shapes));
}

void print_build(IPluginV3* plugin, Network net) {
  // As TensorRT does with the answer to IPluginV3OneBuild's interface version.
  auto* build = capability<IPluginV3OneBuildV2>(plugin, PluginCapabilityType::kBUILD);
  print("build_version", std::to_string(build->getInterfaceInfo().major));
  print("outputs", std::to_string(build->getNbOutputs()));
  std::vector<DataType> in, out(static_cast<size_t>(net.outputs));
  for (const auto& one : net.tensors) in.push_back(one.desc.type);
  print("types_result", std::to_string(build->getOutputDataTypes(out.data(), net.outputs, in.data(), net.inputs)));
  std::vector<std::string> types, aliased, supported;
  for (const DataType type : out) types.push_back(std::to_string(static_cast<int>(type)));
  for (int32_t i = 0; i < net.outputs; ++i) {
    const int32_t input = build->getAliasedInput(i);
    aliased.push_back(input < 0 ? "null" : quoted(net.names[static_cast<size_t>(input)]));
  }
  const auto supports = [&](size_t i) {
    return build->supportsFormatCombination(static_cast<int32_t>(i), net.tensors.data(), net.inputs, net.outputs);
  };
  for (size_t i = 0; i < net.tensors.size(); ++i) {
    const bool linear = supports(i);
    net.tensors[i].desc.format = TensorFormat::kCHW32;
    supported.push_back(linear && !supports(i) ? "true" : "false");
    net.tensors[i].desc.format = TensorFormat::kLINEAR;
  }
  print("types", listed(types));
  print("aliased", listed(aliased));
  print("supported", listed(supported));
  print_shapes(build, net);
  const auto* outputs = net.tensors.data() + net.inputs;
  print("configure_result",
        std::to_string(build->configurePlugin(net.tensors.data(), net.inputs, outputs, net.outputs)));
  print("workspace", std::to_string(build->getWorkspaceSize(net.tensors.data(), net.inputs, outputs, net.outputs)));
}

// Every tensor at an address of its own, shifted by `shift`; outputs at their inputs', unless apart=1.
void run(IPluginV3* plugin, const Network& net, const Options& options, const char* name) {
  auto* runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
  const auto descs = net.descs();
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<std::string> addresses;
  for (size_t i = 0; i < net.names.size(); ++i) {
    uintptr_t address = 0x10000000 * (i + 1) + (options.count("shift") ? std::stoul(options.at("shift")) : 0);
    for (size_t j = 0; j < in.size() && !options.count("apart"); ++j) {
      if (net.names[i] == net.names[j] + "_out") address = reinterpret_cast<uintptr_t>(in[j]);
    }
    if (in.size() < static_cast<size_t>(net.inputs)) in.push_back(reinterpret_cast<void*>(address));
    else out.push_back(reinterpret_cast<void*>(address));
    addresses.push_back("[" + quoted(net.names[i]) + ", " + std::to_string(address) + "]");
  }
  print("addresses", listed(addresses));
  const auto* outputs = descs.data() + net.inputs;
  const int32_t changed = runtime->onShapeChange(descs.data(), net.inputs, outputs, net.outputs);
  const int32_t ran = changed != 0 ? changed
                                   : runtime->enqueue(descs.data(), outputs, in.data(), out.data(),
                                                      reinterpret_cast<void*>(uintptr_t{1} << 40),
                                                      reinterpret_cast<cudaStream_t>(0x57));
  print(name, std::to_string(ran));
}

void life(const Options& options) {
  const Node node(options);
  const Network net(options);
  const PluginFieldCollection fields{static_cast<int32_t>(node.fields.size()), node.fields.data()};
  IPluginCreatorV3One* creator = stand_in::Registry().find("PagedAttention", "1", "");
  const std::unique_ptr<IPluginV3> built(creator->createPlugin("a node", &fields, TensorRTPhase::kBUILD));
  print("built", built ? "true" : "false");
  if (!built) return;
  const std::unique_ptr<IPluginV3> copy(built->clone());
  print_build(copy.get(), net);
  run(copy.get(), net, options, "build_result");
  if (options.count("attach_built")) {
    auto* runtime = capability<IPluginV3OneRuntime>(copy.get(), PluginCapabilityType::kRUNTIME);
    const std::unique_ptr<IPluginV3> attached(runtime->attachToContext(nullptr));
    for (const char* name : {"attached_result", "attached_again_result"}) run(attached.get(), net, options, name);
  }
  print("calls_while_built", calls());

  const auto* kept =
      capability<IPluginV3OneRuntime>(copy.get(), PluginCapabilityType::kRUNTIME)->getFieldsToSerialize();
  print("kept", summary(*kept));
  const std::unique_ptr<IPluginV3> loaded(creator->createPlugin("a node", kept, TensorRTPhase::kRUNTIME));
  auto* runtime = capability<IPluginV3OneRuntime>(loaded.get(), PluginCapabilityType::kRUNTIME);
  print("kept_again", summary(*runtime->getFieldsToSerialize()));
  {
    const std::unique_ptr<IPluginV3> first(runtime->attachToContext(nullptr));
    const std::unique_ptr<IPluginV3> second(runtime->attachToContext(nullptr));
    print("attached", first && second ? "true" : "false");
    print("calls_while_loaded", calls());
    if (first) run(first.get(), net, options, "run_result");
  }
}

void names() {
  IPluginCreatorV3One* creator = stand_in::Registry().find("PagedAttention", "1", "");
  print("fields", summary(*creator->getFieldNames()));
  std::vector<std::string> inputs, outputs;
  for (const char* name : kvedge::launch::kSchemaInputs) inputs.push_back(quoted(name));
  for (const auto& output : kvedge::launch::kSchemaOutputs) outputs.push_back(quoted(output.name));
  print("inputs", listed(inputs));
  print("outputs", listed(outputs));
}

void safetensors(const std::string& path) {
  const std::string bytes = content(path);
  const kvedge::launch::Safetensors file(bytes, "a file");
  for (const auto& [name, data] : file.tensors()) print(name.c_str(), std::to_string(data.size()));
  print("note", quoted(file.metadata("note")));
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  setLoggerFinder(&logger);
  std::printf("{");
  try {
    if (what == "json") print("value", again(kvedge::launch::parse_json(content(words[2]), "a file")));
    if (what == "safetensors") safetensors(words[2]);
    if (what == "names") names();
    if (what == "life") life(Options(count, words));
  } catch (const std::exception& error) {
    logger.messages.push_back(quoted(error.what()));
  }
  print("calls", calls());
  std::printf("\"messages\": %s}\n", listed(logger.messages).c_str());
}
