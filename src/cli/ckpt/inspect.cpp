#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <lockstep/json.h>

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

// What is known besides the tensors, and the tensors.
struct Content {
  Json facts = Json::object();
  std::vector<TensorRow> tensors;
  // Of a model that Python exported.
  std::vector<exported::OperatorUse> operators;
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
  content.facts = {
      {"kind", "exported model"}, {"path", file.string()},    {"torch", program.torch_version},
      {"inputs", inputs},         {"outputs", outputs},       {"modules", program.modules.size()},
      {"nodes", nodes},           {"supported", refused == 0}};
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

void print_json(Content content) {
  content.facts["bytes"] = total_bytes(content);
  content.facts["tensors"] = Json::array();
  for (const TensorRow& tensor : content.tensors) {
    content.facts["tensors"].push_back({{"name", tensor.name},
                                        {"dtype", dtype_text(tensor.dtype)},
                                        {"shape", tensor.shape},
                                        {"bytes", tensor.bytes}});
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

// Text without quotes, a section of its own for what has parts.
void print_facts(const Json& facts) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : facts.names()) {
    const Json& value = facts[key];
    if (key == "metadata") continue;
    rows.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  fmt::print("{}", table_text(rows, {false, false}));
  if (!facts.contains("metadata")) return;
  for (const auto& [key, value] : facts["metadata"].items()) {
    fmt::print("\n{}\n{}\n", key,
               value.dump(Json::Print{.indent = 2, .order = Json::Order::kAsAdded, .replace_invalid = true}));
  }
}

std::string support_text(const exported::OperatorUse& use) {
  if (!use.refusal.empty()) return "no: " + use.refusal;
  return use.stops_gradients ? "yes, without gradients" : "yes";
}

void print_text(const Content& content) {
  print_facts(content.facts);
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
