#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/number.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "exported/archive.h"
#include "exported/executable.h"
#include "exported/input_rules.h"
#include "exported/operators.h"

namespace lockstep::cli::ckpt {
namespace {

struct InspectOptions {
  std::string path;
  std::string operators;
  bool json = false;
};

struct TensorRow {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t bytes;
};

// A module of Python, with those inside it in Python's order.
struct ModuleTree {
  std::string name;        // "0" of "layers.0"
  std::string class_name;  // "Conv2d"; empty: the file does not tell it
  int64_t elements = 0;    // of its own parameters
  std::vector<ModuleTree> children;
  std::map<std::string, size_t, std::less<>> places;  // of the children, by name
};

// What is known besides the tensors, and the tensors.
struct Content {
  Json facts = Json::object();
  std::vector<TensorRow> tensors;
  // Of a model that Python exported.
  std::vector<exported::OperatorUse> operators;
  std::optional<ModuleTree> modules;
};

Content content_of_checkpoint(const std::filesystem::path& folder) {
  const checkpoint::Reader reader(folder);
  const checkpoint::Manifest& manifest = reader.manifest();
  Content content;
  content.facts = {{"kind", "checkpoint"},           {"path", folder.string()},
                   {"step", manifest.step},          {"epoch", manifest.epoch},
                   {"time", manifest.time},          {"world_size", manifest.world_size},
                   {"lockstep", manifest.lockstep},  {"libtorch", manifest.libtorch},
                   {"files", manifest.files.size()}, {"metadata", manifest.metadata}};
  if (manifest.metric) content.facts["metric"] = *manifest.metric;
  for (const auto& [name, tensor] : manifest.tensors) {
    content.tensors.push_back({name, tensor.dtype, tensor.shape,
                               tensor.numel() * static_cast<int64_t>(c10::elementSize(tensor.dtype))});
  }
  return content;
}

Content content_of_file(const checkpoint::WeightsSource& source) {
  Content content;
  const bool is_safetensors = source.kind == checkpoint::WeightsSource::Kind::kSafetensors;
  content.facts = {{"kind", is_safetensors ? "safetensors" : "torch"}, {"path", source.path.string()}};
  for (const auto& [name, tensor] : checkpoint::read_tensors(source, checkpoint::WhichTensors::kAll)) {
    content.tensors.push_back(
        {name, tensor.scalar_type(), tensor.sizes().vec(), static_cast<int64_t>(tensor.nbytes())});
  }
  return content;
}

exported::InputRules rules_of(const std::filesystem::path& file, const exported::Program& program) {
  try {
    return exported::InputRules(program);
  } catch (const exported::ProgramError& error) {
    throw ConfigError("exported", fmt::format("cannot load '{}': {}", file.string(), error.what()));
  }
}

// The module of a path, made if it is not there. Very deep paths, which no real model has, end in one name.
ModuleTree& module_at(ModuleTree& root, std::string_view path) {
  constexpr int kMostLevels = 64;
  ModuleTree* module = &root;
  for (int level = 1; !path.empty(); ++level) {
    const size_t dot = level < kMostLevels ? path.find('.') : std::string_view::npos;
    const std::string_view name = path.substr(0, dot);
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
    auto place = module->places.find(name);
    if (place == module->places.end()) {
      place = module->places.emplace(name, module->children.size()).first;
      module->children.emplace_back().name = name;
    }
    module = &module->children[place->second];
  }
  return *module;
}

void add_classes(const exported::Graph& graph, ModuleTree& root) {
  for (const exported::Node& node : graph.nodes) {
    // A second call of a module is "layer@1".
    const std::string_view path = std::string_view(node.module).substr(0, node.module.find('@'));
    module_at(root, path).class_name = node.module_class.substr(node.module_class.rfind('.') + 1);
    for (const exported::Argument& argument : node.inputs) {
      if (argument.graph) add_classes(*argument.graph, root);
    }
  }
}

ModuleTree modules_of(const exported::Archive& archive) {
  ModuleTree root;
  for (const std::string& path : archive.program.modules) module_at(root, path);
  add_classes(archive.program.graph, root);
  std::set<const void*> seen;
  for (const exported::Payload& weight : archive.weights) {
    // Tied weights belong to the first module that has them.
    if (!weight.is_parameter || !seen.insert(weight.tensor.unsafeGetTensorImpl()).second) continue;
    const size_t dot = weight.name.rfind('.');
    const std::string_view owner =
        std::string_view(weight.name).substr(0, dot == std::string::npos ? 0 : dot);
    module_at(root, owner).elements += weight.tensor.numel();
  }
  return root;
}

Content content_of_exported(const std::filesystem::path& file) {
  const exported::Archive archive = exported::read_archive(file, exported::ReadTensors::kNo);
  const exported::Program& program = archive.program;
  Content content;
  content.operators = exported::operators_of(program);
  Json inputs = Json::object();
  Json outputs = Json::array();
  const exported::InputRules rules = rules_of(file, program);
  for (const exported::Input& input : program.inputs) {
    if (input.kind != exported::Input::Kind::kUser || input.only_value) continue;
    const std::string sizes = rules.sizes_text(inputs.size());
    // "float32 [1 to 64, 3]"
    inputs[input.name] = input.tensor ? fmt::format("{} {}", dtype_text(input.tensor->dtype), sizes)
                                      : fmt::format("number {}", sizes);
  }
  for (const exported::Output& output : program.outputs) {
    if (output.kind == exported::Output::Kind::kUser) outputs.push_back(output.name);
  }
  int64_t nodes = 0;
  int64_t refused = 0;
  for (const exported::OperatorUse& use : content.operators) {
    nodes += use.count;
    refused += use.refusal.empty() ? 0 : 1;
  }
  content.facts = {{"kind", "exported model"}, {"path", file.string()}, {"torch", program.torch_version},
                   {"inputs", inputs},         {"outputs", outputs},    {"nodes", nodes},
                   {"supported", refused == 0}};
  content.modules = modules_of(archive);
  for (const exported::Payload& weight : archive.weights) {
    content.tensors.push_back({weight.name, weight.tensor.scalar_type(), weight.tensor.sizes().vec(),
                               static_cast<int64_t>(weight.tensor.nbytes())});
  }
  return content;
}

int64_t total_bytes(const Content& content) {
  int64_t bytes = 0;
  for (const TensorRow& tensor : content.tensors) bytes += tensor.bytes;
  return bytes;
}

void add_modules(const ModuleTree& module, const std::string& path, Json& rows) {
  rows.push_back({{"name", path}, {"class", module.class_name}, {"parameters", module.elements}});
  for (const ModuleTree& child : module.children) {
    add_modules(child, path.empty() ? child.name : path + "." + child.name, rows);
  }
}

void print_json(Content content) {
  content.facts["bytes"] = total_bytes(content);
  content.facts["tensors"] = Json::array();
  for (const TensorRow& tensor : content.tensors) {
    content.facts["tensors"].push_back({{"name", tensor.name},
                                        {"dtype", dtype_text(tensor.dtype)},
                                        {"shape", tensor.shape},
                                        {"bytes", tensor.bytes}});
  }
  if (content.modules) {
    content.facts["modules"] = Json::array();
    add_modules(*content.modules, "", content.facts["modules"]);
  }
  if (!content.operators.empty()) content.facts["operators"] = Json::array();
  for (const exported::OperatorUse& use : content.operators) {
    Json row = {{"name", use.target}, {"count", use.count}, {"supported", use.refusal.empty()}};
    if (!use.refusal.empty()) row["reason"] = use.refusal;
    if (use.stops_gradients) row["stops_gradients"] = true;
    content.facts["operators"].push_back(std::move(row));
  }
  fmt::print("{}\n", content.facts.dump(
                         Json::Print{.indent = 2, .order = Json::Order::kAsAdded, .replace_invalid = true}));
}

std::string outputs_text(const Json& outputs) {
  std::vector<std::string> names;
  for (const Json& name : outputs) names.push_back(name.get<std::string>());
  return names == std::vector<std::string>{""} ? "one without a name"
                                               : fmt::format("{}", fmt::join(names, ", "));
}

// Text without quotes, a section of its own for what has parts.
void print_facts(const Json& facts) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : facts.names()) {
    const Json& value = facts[key];
    if (key == "metadata" || key == "inputs") continue;
    rows.push_back({key, value.is_string()  ? value.get<std::string>()
                         : key == "outputs" ? outputs_text(value)
                                            : value.dump()});
  }
  fmt::print("{}", table_text(rows, {false, false}));
  if (facts.contains("inputs")) {
    std::vector<std::vector<std::string>> inputs = {{"input", "exported for"}};
    for (const std::string& name : facts["inputs"].names()) {
      inputs.push_back({name, facts["inputs"][name].get<std::string>()});
    }
    fmt::print("\n{}", table_text(inputs, {false, false}));
  }
  if (!facts.contains("metadata")) return;
  for (const auto& [key, value] : facts["metadata"].items()) {
    fmt::print("\n{}\n{}\n", key,
               value.dump(Json::Print{.indent = 2, .order = Json::Order::kAsAdded, .replace_invalid = true}));
  }
}

// Equal for modules that are built alike.
std::string structure_of(const ModuleTree& module) {
  std::string text = fmt::format("{}/{}(", module.class_name, module.elements);
  for (const ModuleTree& child : module.children)
    text += fmt::format("{}:{},", child.name, structure_of(child));
  return text + ")";
}

int64_t elements_in(const ModuleTree& module) {
  int64_t elements = module.elements;
  for (const ModuleTree& child : module.children) elements += elements_in(child);
  return elements;
}

// Parts of a module that are built alike and numbered in sequence: "{0..11}", "block_{1..3}".
struct RepeatedPart {
  std::string name;
  const ModuleTree* first;
  int64_t count;
};

// "block_" and 12 of "block_12"; no number without digits at the end.
std::pair<std::string_view, std::optional<int64_t>> split_number(std::string_view name) {
  const size_t letter = name.find_last_not_of("0123456789");
  const size_t digits = letter == std::string_view::npos ? 0 : letter + 1;
  return {name.substr(0, digits), base::parse_integer(name.substr(digits))};
}

std::vector<RepeatedPart> repeated_parts(const ModuleTree& module) {
  std::vector<RepeatedPart> repeated;
  const std::vector<ModuleTree>& parts = module.children;
  for (size_t first = 0, end = 0; first < parts.size(); first = end) {
    end = first + 1;
    const auto [prefix, number] = split_number(parts[first].name);
    const std::string structure = number ? structure_of(parts[first]) : "";
    const auto continues = [&, prefix = prefix, number = number](const ModuleTree& part) {
      const auto next = split_number(part.name);
      return next.first == prefix && next.second == *number + static_cast<int64_t>(end - first) &&
             structure_of(part) == structure;
    };
    while (number && end < parts.size() && continues(parts[end])) ++end;
    const std::string name = end == first + 1 ? parts[first].name
                                              : fmt::format("{}{{{}..{}}}", prefix, *number,
                                                            *number + static_cast<int64_t>(end - first) - 1);
    repeated.push_back({name, &parts[first], static_cast<int64_t>(end - first)});
  }
  return repeated;
}

// The rows of the modules in `parent`, of which there are `copies`.
void add_rows(const ModuleTree& parent, int64_t copies, const std::string& prefix, size_t level,
              std::vector<std::vector<std::string>>& rows) {
  for (const RepeatedPart& part : repeated_parts(parent)) {
    const ModuleTree& module = *part.first;
    const std::string name = prefix + part.name;
    const int64_t count = copies * part.count;
    // A container with a single part has no row of its own.
    if (module.class_name.empty() && module.elements == 0 && repeated_parts(module).size() == 1) {
      add_rows(module, count, name + ".", level, rows);
      continue;
    }
    rows.push_back(
        {std::string(2 * level, ' ') + name, module.class_name, std::to_string(count * elements_in(module))});
    add_rows(module, count, "", level + 1, rows);
  }
}

std::string support_text(const exported::OperatorUse& use) {
  if (!use.refusal.empty()) return "no: " + use.refusal;
  return use.stops_gradients ? "yes, without gradients" : "yes";
}

void print_text(const Content& content) {
  print_facts(content.facts);
  if (content.modules) {
    std::vector<std::vector<std::string>> modules = {{"module", "class", "parameters"}};
    add_rows(*content.modules, 1, "", 0, modules);
    if (modules.size() > 1) fmt::print("\n{}", table_text(modules, {false, false, true}));
  }
  if (!content.operators.empty()) {
    std::vector<std::vector<std::string>> operators = {{"operator", "count", "supported"}};
    for (const exported::OperatorUse& use : content.operators) {
      operators.push_back({use.target, std::to_string(use.count), support_text(use)});
    }
    fmt::print("\n{}", table_text(operators, {false, true, false}));
  }
  std::vector<std::vector<std::string>> rows = {{"tensor", "dtype", "shape", "size"}};
  for (const TensorRow& tensor : content.tensors) {
    rows.push_back(
        {tensor.name, dtype_text(tensor.dtype), shape_text(tensor.shape), size_text(tensor.bytes)});
  }
  fmt::print("\n{}\n{} tensors, {}\n", table_text(rows, {false, false, false, true}), content.tensors.size(),
             size_text(total_bytes(content)));
}

int inspect(const InspectOptions& options) {
  if (options.path.ends_with(".pt2")) {
    if (!options.operators.empty()) exported::load_operator_library(options.operators);
    const Content content = content_of_exported(options.path);
    options.json ? print_json(content) : print_text(content);
    return kExitSuccess;
  }
  const checkpoint::WeightsSource source = checkpoint::find_weights(options.path);
  const Content content = source.kind == checkpoint::WeightsSource::Kind::kCheckpoint
                              ? content_of_checkpoint(source.path)
                              : content_of_file(source);
  options.json ? print_json(content) : print_text(content);
  return kExitSuccess;
}

}  // namespace
}  // namespace lockstep::cli::ckpt

namespace lockstep::cli {

int run_ckpt_inspect(int argc, const char* const* argv) {
  ckpt::InspectOptions options;
  config::OptionTable("Prints what a checkpoint, a weights file or an exported model holds.",
                      config::kNoVariables)
      .add_argument("PATH", options.path, "checkpoint, run, .safetensors, .pt or .pt2 file",
                    {.required = true})
      .add("operators", options.operators, "of a .pt2 file: a library that registers its custom operators")
      .add("json", options.json, "print JSON", {.negatable = false})
      .parse(argc, argv);
  return ckpt::inspect(options);
}

}  // namespace lockstep::cli
