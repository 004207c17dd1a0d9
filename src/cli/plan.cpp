// `lockstep plan`: the memory that training a model needs on each rank, without training.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <lockstep/json.h>
#include <lockstep/model.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "recipes/recipe.h"
#include "train/measured_memory.h"

namespace lockstep::cli {
namespace plan {
namespace {

// --- the model ---

// The model whose memory is planned.
struct PlannedModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::string optimizer_name;
  // Where the model can run: how, and the shape of one sample.
  std::optional<Model> runnable;
  std::vector<int64_t> sample_shape;
  std::optional<c10::ScalarType> sample_dtype = {};  // nullopt: that of the parameters
  int64_t batch_size = 1;                            // a rank's
  // Of an exported model, which knows its inputs.
  std::shared_ptr<ExportedModelImpl> exported = {};
};

struct ModelChoice {
  std::string name;       // a recipe's, or a path
  std::string size;       // a recipe's flag --model
  std::string optimizer;  // empty: the recipe's own, Adam for a file
  std::string precision = "fp32";
  std::optional<int64_t> batch_size = {};
  int world = 1;
  std::string operators;  // as the flags of `lockstep train MODEL.pt2`
  std::string shard_by;
  std::string recompute_by;
};

const std::vector<std::string> kOptimizers = {"adam",    "adamw", "adadelta", "adagrad",
                                              "rmsprop", "sgd",   "momentum"};

using torch::nn::Module;

c10::ScalarType dtype_of(const std::string& precision) {
  return precision == "bf16" ? at::kBFloat16 : precision == "fp16" ? at::kHalf : at::kFloat;
}

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Module& module) {
  namespace optim = torch::optim;
  const auto parameters = module.parameters();
  if (name == "adam") return std::make_shared<optim::Adam>(parameters);
  if (name == "adamw") return std::make_shared<optim::AdamW>(parameters);
  if (name == "adadelta") return make_adadelta(parameters, {});
  if (name == "adagrad") return std::make_shared<optim::Adagrad>(parameters);
  if (name == "rmsprop") return std::make_shared<optim::RMSprop>(parameters);
  if (name == "sgd") return std::make_shared<optim::SGD>(parameters, optim::SGDOptions(0.1));
  return std::make_shared<optim::SGD>(parameters, optim::SGDOptions(0.1).momentum(0.9));
}

// The module that the names in a file describe: a dot separates a module from its parameter.
struct FileModule : Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};

struct Tree {
  std::string name;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<Tree> parts;

  void add(const std::string& path, const at::Tensor& tensor) {
    const size_t dot = path.find('.');
    if (dot == std::string::npos) {
      tensors.emplace_back(path, tensor);
      return;
    }
    const std::string first = path.substr(0, dot);
    auto found =
        std::find_if(parts.begin(), parts.end(), [&](const Tree& part) { return part.name == first; });
    if (found == parts.end()) found = parts.insert(parts.end(), Tree{first, {}, {}});
    found->add(path.substr(dot + 1), tensor);
  }
};

// "layer_12" without its number; "" where it has none.
std::string without_number(const std::string& name) {
  const size_t end = name.find_last_not_of("0123456789");
  if (end == name.size() - 1) return "";
  return end == std::string::npos ? "#" : name.substr(0, end + 1) + "#";
}

// Of batch normalisation: floating-point and not trained.
bool is_statistic(const std::string& name) { return name == "running_mean" || name == "running_var"; }

std::shared_ptr<Module> module_of(const Tree& tree, bool is_unit, bool inside_unit) {
  std::shared_ptr<Module> module;
  if (is_unit) {
    module = std::make_shared<ShardedImpl<FileModule>>();
  } else {
    module = std::make_shared<FileModule>();
  }
  std::map<std::string, int> numbered;
  for (const Tree& part : tree.parts) ++numbered[without_number(part.name)];
  for (const auto& [name, tensor] : tree.tensors) {
    if (is_statistic(name) || !tensor.is_floating_point()) {
      module->register_buffer(name, tensor);
    } else {
      module->register_parameter(name, tensor);
    }
  }
  for (const Tree& part : tree.parts) {
    const std::string kind = without_number(part.name);
    const bool starts_unit = !inside_unit && !is_unit && !kind.empty() && numbered[kind] > 1;
    module->register_module(part.name, module_of(part, starts_unit, inside_unit || is_unit));
  }
  return module;
}

PlannedModel model_of_file(const ModelChoice& choice) {
  Tree tree;
  for (const auto& [name, tensor] : checkpoint::read_weights(choice.name)) {
    const bool trains = tensor.is_floating_point();
    tree.add(name, at::empty(tensor.sizes(),
                             tensor.options()
                                 .device(c10::DeviceType::Meta)
                                 .dtype(trains ? dtype_of(choice.precision) : tensor.scalar_type())));
  }
  PlannedModel result;
  result.module = module_of(tree, false, false);
  result.optimizer_name = choice.optimizer.empty() ? "adam" : choice.optimizer;
  return result;
}

PlannedModel model_of_export(const ModelChoice& choice) {
  if (!choice.operators.empty()) ExportedModel::load_operators(choice.operators);
  PlannedModel result;
  result.exported = ExportedModel(choice.name).ptr();
  if (!choice.shard_by.empty()) result.exported->shard_by(choice.shard_by == "none" ? "" : choice.shard_by);
  if (!choice.recompute_by.empty()) result.exported->recompute_by(choice.recompute_by);
  if (choice.precision != "fp32") result.exported->to(dtype_of(choice.precision));
  result.module = result.exported;
  result.optimizer_name = choice.optimizer.empty() ? "adamw" : choice.optimizer;
  for (const c10::IValue& input : result.exported->example_inputs(choice.batch_size)) {
    if (!input.isTensor() || input.toTensor().dim() == 0) continue;
    result.batch_size = input.toTensor().size(0);
    break;
  }
  return result;
}

PlannedModel model_of_recipe(const ModelChoice& choice) {
  const recipes::RecipeModel recipe = recipes::find_recipe(choice.name)->model(choice.size);
  PlannedModel result;
  result.module = recipe.model.module();
  // As the trainer does it: buffers of indices stay what they are.
  for (const auto& tensors : {result.module->parameters(), result.module->buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype_of(choice.precision)));
    }
  }
  result.optimizer = recipe.optimizer;
  result.optimizer_name = choice.optimizer.empty() ? optimizer_class(*recipe.optimizer) : choice.optimizer;
  result.runnable = recipe.model;
  result.sample_shape = recipe.sample_shape;
  if (recipe.is_integer) result.sample_dtype = at::kLong;
  result.batch_size = recipe.batch_size > 0 ? recipe.batch_size
                                            : std::max<int64_t>(1, recipe.global_batch_size / choice.world);
  return result;
}

bool is_recipe(const std::string& name) { return recipes::find_recipe(name) != nullptr; }

// Builds a recipe's model on the CPU, or loads an exported one. Another file gives the names and shapes of
// its floating-point tensors, and modules with numbered names ("layers.0", "layers.1") count as Sharded<>
// units. ConfigError: no recipe and no file has the name.
PlannedModel planned_model(const ModelChoice& choice) {
  if (!is_recipe(choice.name) && !std::filesystem::exists(choice.name)) {
    std::vector<std::string> names;
    for (const auto& recipe : recipes::all_recipes()) names.emplace_back(recipe.name);
    throw ConfigError(
        "plan", fmt::format("neither a recipe ({}) nor a file: '{}'", fmt::join(names, ", "), choice.name));
  }
  const bool is_export = recipes::is_exported_model(choice.name);
  if (!is_export && !(choice.operators + choice.shard_by + choice.recompute_by).empty()) {
    throw ConfigError("plan",
                      fmt::format("--operators, --shard-by and --recompute-by are for exported models "
                                  "(.pt2), and this is none: '{}'",
                                  choice.name));
  }
  PlannedModel result = is_recipe(choice.name) ? model_of_recipe(choice)
                        : is_export            ? model_of_export(choice)
                                               : model_of_file(choice);
  if (!choice.optimizer.empty() || !result.optimizer) {
    result.optimizer = make_optimizer(result.optimizer_name, *result.module);
  }
  if (choice.batch_size) result.batch_size = *choice.batch_size;
  return result;
}

// --- what is printed ---

// What is printed about a model.
struct Answer {
  std::string model;
  std::string optimizer;
  std::string precision;
  std::string autocast;  // empty: none
  int world = 1;
  int64_t batch_size = 1;
  // Of a rank; nullopt: the model cannot be run, or they are not asked for.
  std::optional<int64_t> activation_bytes = {};
  bool activations_asked = true;
  bool is_exported = false;
  bool activation_checkpointing = false;
  std::optional<int64_t> memory_bytes = {};  // that a rank has

  struct Stage {
    int stage = 0;
    ZeroPlan plan;
  };
  std::vector<Stage> stages;

  int64_t total(const Stage& stage) const;
  bool fits(const Stage& stage) const { return !memory_bytes || total(stage) <= *memory_bytes; }
};

constexpr const char* kMeasuredAtOnce =
    "measured: the peak of a forward and a backward of this batch on this CPU, without the states";
constexpr const char* kMeasured =
    "measured: the peak of a forward and a backward of one sample and of two on this CPU, without the states";

const char* how_measured(const Answer& answer) { return answer.is_exported ? kMeasuredAtOnce : kMeasured; }

// Where there are no bytes of activations: why.
const char* why_unknown(const Answer& answer) {
  return answer.activations_asked ? "unknown: a file has no forward" : "not measured: --no-activations";
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits.at(unit));
}

std::string stage_table(const Answer& answer) {
  std::vector<std::vector<std::string>> rows = {{"stage", "parameters", "gradients", "master", "optimizer",
                                                 "buffers", "activations", "other", "total"}};
  if (!answer.autocast.empty()) rows.front().insert(rows.front().begin() + 6, "casts");
  if (answer.memory_bytes) rows.front().emplace_back("fits");
  for (const Answer::Stage& stage : answer.stages) {
    const ShardedModel::Memory& memory = stage.plan.memory;
    rows.push_back({std::to_string(stage.stage), bytes_text(memory.parameters), bytes_text(memory.gradients),
                    bytes_text(memory.master), bytes_text(memory.optimizer), bytes_text(memory.buffers),
                    answer.activation_bytes ? bytes_text(*answer.activation_bytes) : "?",
                    bytes_text(stage.plan.other_bytes), bytes_text(answer.total(stage))});
    if (!answer.autocast.empty()) rows.back().insert(rows.back().begin() + 6, bytes_text(memory.casts));
    if (answer.memory_bytes) rows.back().emplace_back(answer.fits(stage) ? "yes" : "no");
  }
  return table_text(rows, std::vector<bool>(rows.front().size(), true));
}

std::string bucket_table(const Answer::Stage& stage) {
  std::vector<std::vector<std::string>> rows = {
      {"bucket", "dtype", "elements", "padding", "shard", "gathered", "unit", "group", "parameters"}};
  for (size_t i = 0; i < stage.plan.buckets.size(); ++i) {
    const ZeroPlan::Bucket& bucket = stage.plan.buckets[i];
    const std::string others =
        bucket.parameters.size() > 1 ? fmt::format(" and {} more", bucket.parameters.size() - 1) : "";
    rows.push_back({std::to_string(i), dtype_text(bucket.dtype), std::to_string(bucket.elements),
                    std::to_string(bucket.padding), std::to_string(bucket.part),
                    bucket.resident ? "always" : "when needed",
                    bucket.unit == 0 ? "-" : std::to_string(bucket.unit), std::to_string(bucket.group),
                    bucket.parameters.front() + others});
  }
  return table_text(rows, {true, false, true, true, true, false, true, true, false});
}

std::string verdict(const Answer& answer) {
  const std::string memory = bytes_text(*answer.memory_bytes);
  for (const Answer::Stage& stage : answer.stages) {
    if (answer.fits(stage)) {
      return fmt::format("Stage {} is the first that fits into {}: {} a rank.\n", stage.stage, memory,
                         bytes_text(answer.total(stage)));
    }
  }
  return fmt::format(
      "No stage of these fits into {}: more ranks, a smaller batch, --activation-checkpointing "
      "or a smaller model.\n",
      memory);
}

int64_t Answer::total(const Stage& stage) const {
  return stage.plan.memory.total() + stage.plan.other_bytes + activation_bytes.value_or(0);
}

std::string text_of(const Answer& answer) {
  const int64_t elements = answer.stages.front().plan.elements;
  std::string text =
      fmt::format("{}: {} trained parameters, {}, {} rank(s), {} samples a rank, {}\n", answer.model,
                  elements, answer.precision, answer.world, answer.batch_size, answer.optimizer);
  if (answer.precision != "fp32") {
    text += fmt::format("Parameters and gradients in {}, masters in float32: a training with --dtype {}.\n",
                        answer.precision, answer.precision == "bf16" ? "bfloat16" : "float16");
  }
  if (!answer.autocast.empty()) {
    text += fmt::format(
        "Operations in {0}, with copies of the weights: a training with --precision {0}. With --dtype {1} in "
        "its "
        "place there are no copies.\n",
        answer.autocast, answer.autocast == "bf16" ? "bfloat16" : "float16");
  }
  text += "\nBytes of each rank:\n\n" + stage_table(answer);
  text += answer.activation_bytes
              ? fmt::format("\nActivations are {}{}.\n", how_measured(answer),
                            answer.activation_checkpointing ? ", with activation checkpointing" : "")
              : fmt::format("\nActivations are {}.\n", why_unknown(answer));
  if (answer.memory_bytes) text += verdict(answer);
  for (const Answer::Stage& stage : answer.stages) {
    text += fmt::format("\nBuckets at stage {}:\n\n{}", stage.stage, bucket_table(stage));
  }
  return text;
}

std::string json_of(const Answer& answer) {
  Json result = {{"model", answer.model},         {"parameters", answer.stages.front().plan.elements},
                 {"precision", answer.precision}, {"optimizer", answer.optimizer},
                 {"world", answer.world},         {"batch_size", answer.batch_size}};
  result["activations"] = {{"bytes", answer.activation_bytes},
                           {"method", answer.activation_bytes ? how_measured(answer) : why_unknown(answer)},
                           {"checkpointing", answer.activation_checkpointing}};
  if (answer.memory_bytes) result["memory"] = *answer.memory_bytes;
  result["stages"] = Json::array();
  for (const Answer::Stage& stage : answer.stages) {
    const ShardedModel::Memory& memory = stage.plan.memory;
    Json own = {{"stage", stage.stage},
                {"bytes",
                 {{"parameters", memory.parameters},
                  {"gradients", memory.gradients},
                  {"master", memory.master},
                  {"optimizer", memory.optimizer},
                  {"buffers", memory.buffers},
                  {"casts", memory.casts},
                  {"other", stage.plan.other_bytes},
                  {"total", answer.total(stage)}}}};
    if (answer.memory_bytes) own["fits"] = answer.fits(stage);
    own["buckets"] = Json::array();
    for (const ZeroPlan::Bucket& bucket : stage.plan.buckets) {
      own["buckets"].push_back({{"dtype", dtype_text(bucket.dtype)},
                                {"elements", bucket.elements},
                                {"padding", bucket.padding},
                                {"part", bucket.part},
                                {"resident", bucket.resident},
                                {"unit", bucket.unit},
                                {"group", bucket.group},
                                {"parameters", bucket.parameters}});
    }
    result["stages"].push_back(std::move(own));
  }
  return result.dump({.indent = 2, .order = Json::Order::kAsAdded}) + "\n";
}

// "80GB" is 80 * 10^9, "80GiB" 80 * 2^30; B, kB, MB, TB likewise. ConfigError.
int64_t parse_bytes(const std::string& text) {
  constexpr std::array<std::pair<const char*, double>, 9> kUnits = {{{"", 1},
                                                                     {"B", 1},
                                                                     {"kB", 1e3},
                                                                     {"KB", 1e3},
                                                                     {"MB", 1e6},
                                                                     {"GB", 1e9},
                                                                     {"TB", 1e12},
                                                                     {"MiB", 1 << 20},
                                                                     {"GiB", 1 << 30}}};
  size_t digits = 0;
  double number = 0;
  try {
    number = std::stod(text, &digits);
  } catch (const std::exception&) {
    digits = 0;
  }
  const std::string unit = text.substr(std::min(text.find_first_not_of(' ', digits), text.size()));
  for (const auto& [name, factor] : kUnits) {
    if (digits > 0 && unit == name && number > 0 && std::isfinite(number) && number * factor < 1e18) {
      return static_cast<int64_t>(number * factor);
    }
  }
  throw ConfigError("plan", fmt::format("not an amount of memory, write 80GB or 24GiB: '{}'", text));
}

}  // namespace
}  // namespace plan

// --- the command ---

namespace {

struct PlanOptions {
  plan::ModelChoice choice;
  std::vector<int> stages = {0, 1, 2, 3};
  std::string memory;
  std::string autocast;
  int64_t persistence_threshold = ShardedOptions().zero.persistence_threshold;
  int64_t bucket_bytes = ShardedOptions().zero.bucket_cap_bytes;
  bool activations = true;
  bool activation_checkpointing = false;
  bool json = false;
};

// Of images without the loss, which needs targets.
std::optional<int64_t> activations_of(const plan::PlannedModel& model, const PlanOptions& options) {
  if (!options.activations) return std::nullopt;
  if (model.exported) {
    return train::measure_peak(*model.module, [&] {
      at::Tensor sum = torch::zeros({});
      for (const c10::IValue& output :
           model.exported->run(model.exported->example_inputs(model.batch_size))) {
        if (output.isTensor() && output.toTensor().requires_grad()) sum = sum + output.toTensor().sum();
      }
      if (!sum.requires_grad()) {
        throw ConfigError("plan", "no output of the model depends on a parameter that is trained");
      }
      return sum;
    });
  }
  if (!model.runnable) return std::nullopt;
  const auto parameters = model.module->parameters();
  const c10::ScalarType dtype = model.sample_dtype.value_or(parameters.front().scalar_type());
  return train::measure_activations(*model.runnable, model.sample_shape, dtype).of(model.batch_size);
}

int print_plan(const PlanOptions& options) {
  plan::Answer answer;
  if (!options.autocast.empty() && options.choice.precision != "fp32") {
    throw ConfigError(
        "plan",
        fmt::format("--autocast {} is for parameters in fp32, and --precision is {}: give one of the two",
                    options.autocast, options.choice.precision));
  }
  answer.autocast = options.autocast;
  if (!options.memory.empty()) answer.memory_bytes = plan::parse_bytes(options.memory);
  const plan::PlannedModel model = plan::planned_model(options.choice);
  if (options.activation_checkpointing) set_activation_checkpointing(*model.module);
  answer.model = options.choice.size.empty()
                     ? options.choice.name
                     : fmt::format("{} --model {}", options.choice.name, options.choice.size);
  answer.optimizer = model.optimizer_name;
  answer.precision = options.choice.precision;
  answer.world = options.choice.world;
  answer.batch_size = model.batch_size;
  answer.activation_checkpointing = options.activation_checkpointing || !options.choice.recompute_by.empty();
  for (const int stage : options.stages) {
    ShardedOptions sharded;
    sharded.zero.stage = stage;
    sharded.zero.persistence_threshold = options.persistence_threshold;
    sharded.zero.bucket_cap_bytes = options.bucket_bytes;
    if (!options.autocast.empty()) {
      sharded.autocast_dtype = options.autocast == "bf16" ? at::kBFloat16 : at::kHalf;
    }
    answer.stages.push_back({stage, plan_zero(*model.module, *model.optimizer, answer.world, sharded)});
  }
  if (answer.stages.front().plan.elements == 0) {
    throw ConfigError("plan", fmt::format("there is nothing to train in '{}'", answer.model));
  }
  answer.activations_asked = options.activations;
  answer.is_exported = model.exported != nullptr;
  answer.activation_bytes = activations_of(model, options);
  fmt::print("{}", options.json ? plan::json_of(answer) : plan::text_of(answer));
  return kExitSuccess;
}

}  // namespace

int run_plan(int argc, const char* const* argv) {
  PlanOptions options;
  std::vector<std::string> optimizers = plan::kOptimizers;
  optimizers.insert(optimizers.begin(), "");
  config::OptionTable(
      "Computes the memory that training a model needs on each rank, stage by stage. Nothing is trained.\n"
      "\n"
      "  lockstep plan vit --model base --world 8 --precision bf16 --memory 80GB",
      config::kNoVariables)
      .add_argument("MODEL", options.choice.name,
                    "a recipe (sine, mnist, cifar100, vit, gpt), an exported model (.pt2), or a checkpoint, "
                    ".safetensors or .pt file",
                    {.required = true})
      .add("world", options.choice.world, "ranks", {.minimum = 1})
      .add("zero", options.stages, "stages to compare", {.several = true, .minimum = 0, .maximum = 3})
      .add("precision", options.choice.precision, "of parameters and gradients",
           {.choices = {"fp32", "bf16", "fp16"}})
      .add("autocast", options.autocast, "the type that operations compute in, while parameters stay fp32",
           {.choices = {"", "bf16", "fp16"}})
      .add("batch", options.choice.batch_size,
           "samples of each rank; left out: the recipe's, or that of the export", {.minimum = 1})
      .add("optimizer", options.choice.optimizer, "left out: the recipe's; adam for a file, adamw for a .pt2",
           {.choices = optimizers})
      .add("model", options.choice.size,
           "of the recipe: vit: tiny, small or base; gpt: tiny, 124M, 355M, 774M or 1558M")
      .add("memory", options.memory, "of each rank, to see what fits: 80GB, 24GiB")
      .add("persistence_threshold", options.persistence_threshold,
           "stage 3: parameters of fewer elements stay replicated", {.minimum = 0})
      .add("bucket_bytes", options.bucket_bytes, "after which a bucket is closed", {.minimum = 1})
      .add("activations", options.activations, "measure activations")
      .add("activation_checkpointing", options.activation_checkpointing,
           "units compute their activations again in backward", {.negatable = false})
      .add("operators", options.choice.operators, "of a .pt2: the library of its custom operators")
      .add("shard_by", options.choice.shard_by, "of a .pt2: the modules that are units at stage 3, or none")
      .add("recompute_by", options.choice.recompute_by,
           "of a .pt2: the modules that compute their activations again in backward")
      .add("json", options.json, "print JSON", {.negatable = false})
      .parse(argc, argv);
  return print_plan(options);
}

}  // namespace lockstep::cli
