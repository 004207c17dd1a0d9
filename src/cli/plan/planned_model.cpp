#include "cli/plan/planned_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "checkpoint/weights.h"
#include "recipes/recipe.h"

namespace lockstep::cli::plan {
namespace {

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

// What a file tells of a module: parameters and parts, by the dots of their names.
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

PlannedModel model_of_recipe(const ModelChoice& choice) {
  const recipes::RecipeModel recipe = recipes::find_recipe(choice.name)->model(choice.size);
  PlannedModel result;
  result.module = recipe.model.module();
  // As the trainer does it: buffers of indices stay what they are.
  for (const auto& tensors : {result.module->parameters(), result.module->buffers()}) {
    for (at::Tensor tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype_of(choice.precision)));
    }
  }
  result.optimizer = recipe.optimizer;
  result.optimizer_name = choice.optimizer.empty() ? optimizer_class(*recipe.optimizer) : choice.optimizer;
  result.runnable = recipe.model;
  result.sample_shape = recipe.sample_shape;
  result.batch_size = recipe.batch_size > 0 ? recipe.batch_size
                                            : std::max<int64_t>(1, recipe.global_batch_size / choice.world);
  return result;
}

bool is_recipe(const std::string& name) { return recipes::find_recipe(name) != nullptr; }

}  // namespace

PlannedModel planned_model(const ModelChoice& choice) {
  if (!is_recipe(choice.name) && !std::filesystem::exists(choice.name)) {
    std::vector<std::string> names;
    for (const auto& recipe : recipes::all_recipes()) names.emplace_back(recipe.name);
    throw ConfigError(
        "plan", fmt::format("neither a recipe ({}) nor a file: '{}'", fmt::join(names, ", "), choice.name));
  }
  PlannedModel result = is_recipe(choice.name) ? model_of_recipe(choice) : model_of_file(choice);
  if (!choice.optimizer.empty() || !result.optimizer) {
    result.optimizer = make_optimizer(result.optimizer_name, *result.module);
  }
  if (choice.batch_size) result.batch_size = *choice.batch_size;
  return result;
}

}  // namespace lockstep::cli::plan
