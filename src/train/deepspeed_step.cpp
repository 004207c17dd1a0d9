#include "train/deepspeed_step.h"

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "base/log.h"
#include "deepspeed/failure.h"
#include "engine/engine_impl.h"
#include "engine/sharded_options.h"
#include "shard/checked_options.h"
#include "train/governed_options.h"
#include "train/weighted_result.h"

namespace lockstep::train {
namespace {

torch::optim::Optimizer* unless_named(const DeepSpeedConfig& config, torch::optim::Optimizer* own) {
  return config.optimizer.exists() ? nullptr : own;
}

std::string precision_name(std::optional<c10::ScalarType> autocast) {
  if (!autocast) return "fp32";
  return *autocast == c10::kHalf ? "fp16" : "bf16";
}

std::string dtype_name(DeepSpeedConfig::Dtype dtype) {
  switch (dtype) {
    case DeepSpeedConfig::Dtype::kFp16: return "float16";
    case DeepSpeedConfig::Dtype::kBf16: return "bfloat16";
    case DeepSpeedConfig::Dtype::kFp32: break;
  }
  return "float32";
}

// Two would set one learning rate.
void drop_schedules(TrainConfig& config, const World& world) {
  std::vector<std::shared_ptr<Callback>> kept;
  for (const auto& callback : config.callbacks) {
    if (std::dynamic_pointer_cast<ReduceLearningRateOnPlateau>(callback)) {
      throw ConfigError("train",
                        "deepspeed_config has a scheduler, and the program reduces the learning rate on a "
                        "plateau: remove one of them");
    }
    if (!std::dynamic_pointer_cast<ScheduleLearningRate>(callback)) {
      kept.push_back(callback);
    } else if (world.is_main()) {
      base::log_info("train",
                     "the learning rate follows deepspeed_config's scheduler, not the program's schedule");
    }
  }
  config.callbacks = std::move(kept);
}

void refuse(bool is_set, const char* field) {
  if (!is_set) return;
  throw ConfigError("train",
                    fmt::format("{} does not go with deepspeed_config: leave one of them out", field));
}

// A program may set its own values in code and leave it to its users to bring a file, so that
// this is no error, as it is for a flag.
void say_what_gives_way(const DeepSpeedConfig& file, const TrainConfig& set, const TrainConfig& governed) {
  const auto values = [](const TrainConfig& config) { return Json::parse(config.to_json()); };
  const Json asked = values(set);
  const Json result = values(governed);
  for (const GovernedOption& option : governed_changes(file, values(TrainConfig{}), asked)) {
    if (!asked.contains(option.name) || asked.at(option.name) == result.at(option.name)) continue;
    base::log_warning("train",
                      "the program sets {} to {}, and deepspeed_config to {}, which counts: its key is {}",
                      option.name, asked.at(option.name).dump(), result.at(option.name).dump(), option.key);
  }
}

}  // namespace

TrainConfig governed_by(const DeepSpeedConfig& file, TrainConfig config, const World& world) {
  const TrainConfig set = config;
  refuse(config.global_batch_size.has_value(), "global_batch_size");
  refuse(config.cuda_graph, "cuda_graph");
  refuse(config.clip_grad_value > 0, "clip_grad_value");
  refuse(config.dtype == "float64", "dtype float64");
  if (file.train_batch_size || file.train_micro_batch_size_per_gpu || config.batch_size) {
    const DeepSpeedConfig::BatchTriple batch = file.resolve_batch(world.size(), config.batch_size);
    config.batch_size = batch.micro_batch_size;
    config.accumulate_steps = batch.accumulation_steps;
  } else {
    config.accumulate_steps = file.gradient_accumulation_steps.value_or(1);
  }
  config.dtype = dtype_name(file.dtype());
  config.precision = precision_name(engine::autocast_dtype(file, world.device().type()));
  config.clip_grad_norm = file.gradient_clipping;
  config.zero.stage = static_cast<int>(file.zero.stage);
  const ShardedOptions sharded = engine::sharded_options(file);
  config.zero.persistence_threshold = sharded.persistence_threshold;
  config.zero.overlap_gather = sharded.overlap_gather;
  config.zero.offload_optimizer = shard::name_of(sharded.offload_optimizer.device);
  config.zero.offload_param = shard::name_of(sharded.offload_param.device);
  config.zero.nvme_path = sharded.offload_optimizer.nvme_path;
  config.find_unused_parameters = sharded.find_unused_parameters;
  if (world.is_main()) say_what_gives_way(file, set, config);
  if (file.scheduler.exists()) drop_schedules(config, world);
  config.validate();
  return config;
}

DeepSpeedStep::DeepSpeedStep(const World& world, const Model& model, DeepSpeedConfig config,
                             torch::optim::Optimizer* own)
    : EngineCore(model.module(), config, world.communicator(), unless_named(config, own), world.device()) {
  if (!config.managed_gradient_accumulation) {
    deepspeed::fail_at(config, "managed_gradient_accumulation",
                       "the trainer decides when a step is over: set it to true");
  }
}

LossResult DeepSpeedStep::run(StepBatches& batches, const std::function<LossResult(const Batch&)>& forward,
                              StepClock& clock) {
  LossResult total{at::Tensor()};
  for (size_t i = 0; i < batches.size(); ++i) {
    clock.enter(base::Phase::kData);
    const Batch& batch = batches.on_device(i);
    clock.enter(base::Phase::kForward);
    LossResult result = [&] {
      const Forward scope = begin_forward(batch.size());
      return forward(batch);
    }();
    clock.enter(base::Phase::kBackward);
    backward(result.loss);
    clock.enter(base::Phase::kOptimizer);
    step();
    add_weighted(total, result, 1.0 / static_cast<double>(batches.size()));
  }
  if (may_skip() && !was_step_applied()) impl().scaler->check_progress();
  return total;
}

void DeepSpeedStep::restart() { impl().restart(); }
void DeepSpeedStep::set_before_step(std::function<void(const at::Tensor& factor)> function) {
  impl().before_step = std::move(function);
}
bool DeepSpeedStep::may_skip() const { return impl().scaler.has_value(); }
bool DeepSpeedStep::prepare_evaluation() { return impl().replica->prepare_evaluation(); }
ShardedModel* DeepSpeedStep::sharded() { return impl().replica->sharded(); }
std::chrono::nanoseconds DeepSpeedStep::exposed_wait() { return impl().replica->exposed_wait(); }
Json DeepSpeedStep::state() { return impl().state(); }
void DeepSpeedStep::load_state(const Json& state, int64_t step) {
  impl().load_state(state, step, /*with_schedule=*/true);
}

}  // namespace lockstep::train
