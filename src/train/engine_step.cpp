#include "train/engine_step.h"

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <cmath>

#include "base/log.h"
#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "config/deepspeed/failure.h"
#include "parallel/parallel_model.h"
#include "train/deepspeed/engine_impl.h"
#include "train/deepspeed/sharded_options.h"
#include "train/step.h"
#include "train/train_options.h"

namespace lockstep::train {
namespace {

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

// Two schedules would set the same learning rate.
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

// Warns about values in code that the file overrides. For a flag this is an error, but a program may
// set values in code and let its users add a file.
void warn_of_overrides(const DeepSpeedConfig& file, const TrainConfig& set, const TrainConfig& governed) {
  const auto values = [](const TrainConfig& config) { return Json::parse(config.to_json()); };
  const Json asked = values(set);
  const Json result = values(governed);
  for (const GovernedOption& option : governed_changes(file, values(TrainConfig{}), asked)) {
    if (!asked.contains(option.name) || asked.at(option.name) == result.at(option.name)) continue;
    base::log_warning("train",
                      "deepspeed_config overrides {}, which the program sets to {}: {} by its key {}",
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
  refuse(config.dtype == "complex64", "dtype complex64");
  refuse(config.dtype == "complex128", "dtype complex128");
  if (file.train_batch_size || file.train_micro_batch_size_per_gpu || config.batch_size) {
    const DeepSpeedConfig::BatchTriple batch = file.resolve_batch(world.size(), config.batch_size);
    config.batch_size = batch.micro_batch_size;
    config.accumulate_steps = batch.accumulation_steps;
  } else {
    config.accumulate_steps = file.gradient_accumulation_steps.value_or(1);
  }
  config.dtype = dtype_name(file.dtype());
  config.precision = precision_name(deepspeed::autocast_dtype(file, world.device().type()));
  config.clip_grad_norm = file.gradient_clipping;
  config.zero = file.zero_options();
  config.find_unused_parameters = deepspeed::sharded_options(file).find_unused_parameters;
  if (world.is_main()) warn_of_overrides(file, set, config);
  if (file.scheduler.exists()) drop_schedules(config, world);
  config.validate();
  return config;
}

// The engine. Derived, because EngineCore gives access to its parts only to derived classes.
class EngineStep::Core final : public EngineCore {
 public:
  using EngineCore::begin_forward;
  using EngineCore::EngineCore;
  using EngineCore::impl;
};

EngineStep::EngineStep(StepParts& parts, const DeepSpeedConfig& file, torch::optim::Optimizer& own)
    : Step(parts),
      core_(std::make_unique<Core>(parts.model.module(), file, parts.world.communicator(),
                                   file.optimizer.exists() ? nullptr : &own, parts.world.device())) {
  if (!file.managed_gradient_accumulation) {
    deepspeed::fail_at(file, "managed_gradient_accumulation",
                       "the trainer decides when a step is over: set it to true");
  }
  if (file.dataloader_drop_last) {
    deepspeed::fail_at(file, "dataloader_drop_last",
                       "dataloader_drop_last: the program makes the trainer's loader: set "
                       "LoaderOptions::drop_last there, and remove the line");
  }
}

EngineStep::~EngineStep() = default;

LossResult EngineStep::run(StepBatches& batches) {
  if (parts_.custom) {
    throw ConfigError(
        "train",
        "deepspeed_config says what a step is, and the program has its own (set_optimize_step): "
        "leave one of them out");
  }
  watched_.clear();
  LossResult total{at::Tensor()};
  for (size_t i = 0; i < batches.size(); ++i) {
    clock().enter(base::Phase::kData);
    const Batch& batch = batches.on_device(i);
    clock().enter(base::Phase::kForward);
    LossResult result = [&] {
      const auto scope = core_->begin_forward(batch.size());
      return forward(batch);
    }();
    clock().enter(base::Phase::kBackward);
    core_->backward(result.loss);
    clock().enter(base::Phase::kOptimizer);
    core_->step();
    add_weighted(total, result, 1.0 / static_cast<double>(batches.size()));
  }
  if (may_skip() && !core_->was_step_applied()) core_->impl().scaler->check_progress();
  core_->impl().before_step = nullptr;
  return total;
}

bool EngineStep::changed_weights() const { return core_->was_step_applied(); }

void EngineStep::check_fit(int64_t batches_per_epoch) const {
  if (batches_per_epoch >= config().accumulate_steps) return;
  throw ConfigError("train",
                    fmt::format("an epoch has {} batches a rank, and deepspeed_config accumulates {} for one "
                                "step: lower gradient_accumulation_steps or the batch",
                                batches_per_epoch, config().accumulate_steps));
}

void EngineStep::begin_fit() { core_->impl().restart(); }
bool EngineStep::accepts_loss(double loss) { return std::isfinite(loss) || may_skip(); }
bool EngineStep::may_skip() const { return core_->impl().scaler.has_value(); }
int64_t EngineStep::skipped_steps() const { return core_->skipped_steps(); }
double EngineStep::loss_scale() const { return core_->loss_scale(); }
torch::optim::Optimizer* EngineStep::optimizer() const { return &core_->optimizer(); }
parallel::ParallelModel& EngineStep::parallel() const { return *core_->impl().model; }

void EngineStep::check_replaceable() const {
  throw ConfigError(
      "train",
      "the optimizer cannot be changed with deepspeed_config: leave it out, or make another trainer");
}

void EngineStep::watch_gradients(bool with_values) {
  core_->impl().before_step = [this, with_values](const at::Tensor& factor) {
    const double times = factor.defined() ? factor.item<double>() : 1;
    const torch::nn::Module& module = *parts_.model.module();
    if (const ShardedModel* const model = sharded()) {
      watched_ = train::gradient_statistics(module, *model, world().device(), times, with_values);
    } else if (world().is_main()) {
      watched_ = train::gradient_statistics(module, times, with_values);
    }
  };
}

at::Tensor EngineStep::gradient_norm() {
  const EngineCore::Impl& impl = core_->impl();
  if (!impl.norm.defined()) return {};
  return impl.norm.to(torch::kFloat64) / impl.norm_scale;  // where it is: nothing waits for it
}

void EngineStep::add_to(checkpoint::Snapshot& snapshot) const {
  parallel().add_to(snapshot, *optimizer());
  if (world().is_main()) snapshot.metadata[deepspeed::kSection] = core_->impl().state();
}

void EngineStep::restore_rest(const checkpoint::Reader& reader) {
  core_->impl().load_state(reader.metadata().value(deepspeed::kSection, Json::object()), reader.step(),
                           /*with_schedule=*/true);
}

}  // namespace lockstep::train
