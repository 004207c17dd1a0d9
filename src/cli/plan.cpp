#include "cli/plan.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "cli/plan/planned_model.h"
#include "cli/plan/text.h"
#include "train/measured_memory.h"

namespace lockstep::cli {
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

// Without the loss, which knows its targets.
std::optional<int64_t> activations_of(const plan::PlannedModel& model, const PlanOptions& options) {
  if (!options.activations || !model.runnable) return std::nullopt;
  const auto parameters = model.module->parameters();
  return train::measure_activations(*model.runnable, model.sample_shape, parameters.front().scalar_type())
      .of(model.batch_size);
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
  answer.activation_checkpointing = options.activation_checkpointing;
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
  answer.activation_bytes = activations_of(model, options);
  fmt::print("{}", options.json ? plan::json_of(answer) : plan::text_of(answer));
  return kExitSuccess;
}

}  // namespace

void add_plan(CLI::App& app, int* status) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "what training a model takes of each rank, stage by stage");
  command
      ->add_option("MODEL", options->choice.name,
                   "a recipe (sine, mnist, cifar100, vit), or a checkpoint, .safetensors or .pt file")
      ->required();
  command->add_option("--world", options->choice.world, "ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--zero", options->stages, "stages to compare")
      ->delimiter(',')
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  command->add_option("--precision", options->choice.precision, "of parameters and gradients")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command
      ->add_option("--autocast", options->autocast, "what operations compute in, beside parameters in fp32")
      ->check(CLI::IsMember({"bf16", "fp16"}));
  command->add_option("--batch", options->choice.batch_size, "samples of each rank")
      ->check(CLI::PositiveNumber);
  command->add_option("--optimizer", options->choice.optimizer, "default: the recipe's; adam for a file")
      ->check(CLI::IsMember(plan::kOptimizers));
  command->add_option("--model", options->choice.size, "of the recipe vit: tiny, small or base");
  command->add_option("--memory", options->memory, "of each rank, to see what fits: 80GB, 24GiB");
  command
      ->add_option("--persistence-threshold", options->persistence_threshold,
                   "stage 3: parameters of fewer elements stay whole")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--bucket-bytes", options->bucket_bytes, "after which a bucket is closed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--activations,!--no-activations", options->activations, "measure activations (default)");
  command->add_flag("--activation-checkpointing", options->activation_checkpointing,
                    "units compute their activations again in backward");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, status] { *status = print_plan(*options); });
}

}  // namespace lockstep::cli
