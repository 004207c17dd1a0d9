#include "train/gradient_step.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/optimizer_state.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "comm/communicator_impl.h"
#include "engine/autocast.h"
#include "train/batch_source.h"
#include "train/recording.h"
#include "train/weighted_result.h"

namespace lockstep::train {
namespace {

// Optimizers that evaluate the loss as often as they like.
bool needs_closure(const torch::optim::Optimizer& optimizer) {
  const std::string name = optimizer_class(optimizer);
  return name == "LBFGS" || name == "AdamLbfgs";
}

std::unique_ptr<DeepSpeedStep> make_deepspeed(const World& world, const Model& model,
                                              torch::optim::Optimizer* optimizer,
                                              const std::optional<DeepSpeedConfig>& config) {
  if (!config) return nullptr;
  if (optimizer == nullptr) {
    throw ConfigError(
        "train", "deepspeed_config is about gradients, and training without them has none: leave it out");
  }
  return std::make_unique<DeepSpeedStep>(world, model, *config, optimizer);
}

}  // namespace

GradientStep::GradientStep(const World& world, const Model& model, torch::optim::Optimizer* optimizer,
                           const Loss& loss, const TrainConfig& config,
                           const std::optional<DeepSpeedConfig>& deepspeed, StepClock& clock)
    : world_(world),
      model_(model),
      loss_(loss),
      config_(config),
      clock_(clock),
      deepspeed_(make_deepspeed(world, model, optimizer, deepspeed)),
      parallel_(deepspeed ? nullptr : ParallelModel::make(world, model, optimizer, config)) {
  if (config.precision == "fp16" && !deepspeed_) scaler_.emplace();
}

bool GradientStep::prepare_evaluation() {
  return deepspeed_ ? deepspeed_->prepare_evaluation() : parallel_->prepare_evaluation();
}

ShardedModel* GradientStep::sharded() { return deepspeed_ ? deepspeed_->sharded() : parallel_->sharded(); }

std::chrono::nanoseconds GradientStep::exposed_wait() {
  return deepspeed_ ? deepspeed_->exposed_wait() : parallel_->exposed_wait();
}

int64_t GradientStep::skipped_steps() const {
  if (deepspeed_) return deepspeed_->skipped_steps();
  return scaler_ ? scaler_->skipped_steps() : 0;
}

double GradientStep::loss_scale() const {
  if (deepspeed_) return deepspeed_->loss_scale();
  return scaler_ ? scaler_->current_scale() : 1;
}

LossResult GradientStep::forward(const Batch& batch) const {
  const engine::Autocast autocast(config_.precision, world_.device().type());
  try {
    LossResult result = loss_(batch, model_);
    if (!result.loss.defined() || result.loss.numel() != 1) {
      throw ConfigError("train", fmt::format("the loss of a batch must be one number: it has {}",
                                             result.loss.defined() ? result.loss.numel() : 0));
    }
    for (const auto& [name, value] : result.metrics) {
      if (value.defined() && value.numel() == 1) continue;
      throw ConfigError("train", fmt::format("the metric '{}' of a batch must be one number", name));
    }
    return result;
  } catch (const c10::Error& error) {
    throw ConfigError("train",
                      fmt::format("the model or the loss failed on a batch of {}, parameters are {}: {}",
                                  describe(batch), config_.dtype, error.what_without_backtrace()));
  }
}

void GradientStep::backward(const LossResult& result, double weight) {
  at::Tensor loss = weight == 1 ? result.loss : result.loss * weight;
  if (scaler_) loss = scaler_->scale(loss);
  if (!loss.requires_grad()) {
    throw ConfigError("train", "the loss does not depend on any parameter that takes a gradient");
  }
  loss.backward();
}

LossResult GradientStep::evaluate(StepBatches& batches) {
  const auto samples = static_cast<double>(batches.samples());
  parallel_->zero_grad();
  LossResult total{at::Tensor()};
  for (size_t i = 0; i < batches.size(); ++i) {
    std::optional<GradientSync::NoSync> not_yet;
    if (i + 1 < batches.size()) {
      if (auto scope = parallel_->accumulate()) not_yet.emplace(std::move(*scope));
    }
    clock_.enter(base::Phase::kData);
    const Batch& batch = batches.on_device(i);
    clock_.enter(base::Phase::kForward);
    parallel_->prepare_forward();
    LossResult result = forward(batch);
    clock_.enter(base::Phase::kBackward);
    if (batches.size() == 1) {
      backward(result, 1);
      total.loss = result.loss.detach();
      total.metrics = std::move(result.metrics);
    } else {
      const double weight = static_cast<double>(batches.samples_of(i)) / samples;
      backward(result, weight);
      add_weighted(total, result, weight);
    }
  }
  clock_.enter(base::Phase::kOptimizer);
  finish_gradients();
  return total;
}

void GradientStep::finish_gradients() {
  if (fused_) {
    if (scaler_) found_inf_ = scaler_->unscale_on_device(parallel_->flat_gradients(), world_.communicator());
    finite_ = true;  // or the kernels change nothing
  } else {
    finite_ = !scaler_ || scaler_->unscale(parallel_->flat_gradients(), world_.communicator());
  }
  if (!finite_) return;
  const torch::NoGradGuard no_grad;
  if (config_.clip_grad_value > 0) {
    for (const at::Tensor& flat : parallel_->flat_gradients()) {
      flat.clamp_(-config_.clip_grad_value, config_.clip_grad_value);
    }
  }
  if (config_.clip_grad_norm > 0) parallel_->clip_grad_norm(config_.clip_grad_norm);
}

void GradientStep::refuse_scaler(const std::string& what) const {
  if (!scaler_) return;
  throw ConfigError("train", fmt::format("precision fp16 may have to leave out a step, and {} cannot: set "
                                         "precision to bf16 or fp32",
                                         what));
}

void GradientStep::refuse_division(const std::string& what) const {
  if (config_.zero.stage == 0) return;
  throw ConfigError("train", fmt::format("{} works on whole gradients, which no rank has with zero_stage {}: "
                                         "set it to 0",
                                         what, config_.zero.stage));
}

void GradientStep::refuse_deepspeed() const {
  if (!deepspeed_) return;
  throw ConfigError("train",
                    "deepspeed_config says what a step is, and the program has its own (set_optimize_step): "
                    "leave one of them out");
}

LossResult GradientStep::run_with_closure(StepBatches& batches, torch::optim::Optimizer& optimizer) {
  const std::string what =
      fmt::format("the optimizer {}, which evaluates the loss itself,", optimizer_class(optimizer));
  refuse_scaler(what);
  refuse_division(what);
  StepBatches all = batches.with(batches.all_on_device());  // each evaluation needs them
  LossResult first{at::Tensor()};
  optimizer.step([&] {
    const LossResult result = evaluate(all);
    if (!first.loss.defined()) first = result;
    // The optimizer decides by the loss when to stop: all ranks must see the same one.
    const at::Tensor mean = result.loss.clone();
    world_.communicator().all_reduce(mean, ReduceOp::kMean).wait();
    return mean;
  });
  return first;
}

void GradientStep::meet(torch::optim::Optimizer& optimizer) {
  if (&optimizer == known_optimizer_) return;
  known_optimizer_ = &optimizer;
  needs_closure_ = needs_closure(optimizer);
  fused_.reset();
  recorded_.reset();
  // An average of weights must know whether there was a step.
  const bool host_must_know = scaler_ && config_.ema_decay > 0;
  const bool is_whole = config_.zero.stage == 0;
  if (config_.fused_optimizer && !world_.device().is_cpu() && !custom_ && !host_must_know && is_whole) {
    fused_ = optim::FusedStep::make(optimizer);
  }
  if (!config_.cuda_graph) return;
  const RecordingFacts facts{.device = world_.device(),
                             .num_ranks = world_.size(),
                             .backend = world_.communicator().backend(),
                             .has_own_step = static_cast<bool>(custom_),
                             .optimizer_objection = optim::FusedStep::objection(optimizer)};
  if (const std::string objection = objection_to_recording(config_, facts); !objection.empty()) {
    throw ConfigError("train", objection);
  }
  recorded_.emplace();
}

LossResult GradientStep::run_fused(StepBatches& batches) {
  fused_->prepare();
  const auto body = [this](StepBatches& inputs) {
    LossResult result = evaluate(inputs);
    fused_->launch(found_inf_);
    if (scaler_) scaler_->update();
    found_inf_ = at::Tensor();
    return result;
  };
  if (!recorded_) {
    LossResult result = body(batches);
    fused_->count();
    return result;
  }
  const std::vector<double> options = fused_->fixed_options();
  if (options != recorded_options_) {
    recorded_->forget();
    recorded_options_ = options;
  }
  clock_.enter(base::Phase::kForward);
  LossResult result = recorded_->run(batches, body);
  comm::watch_graph(world_.communicator(), "a recorded step");
  fused_->count();
  return result;
}

void GradientStep::watch_gradients(bool with_values) {
  if (!deepspeed_) return;
  deepspeed_->set_before_step([this, with_values](const at::Tensor& factor) {
    const double times = factor.defined() ? factor.item<double>() : 1;
    const torch::nn::Module& module = *model_.module();
    if (const ShardedModel* const model = sharded()) {
      watched_ = train::gradient_statistics(module, *model, world_.device(), times, with_values);
    } else if (world_.is_main()) {
      watched_ = train::gradient_statistics(module, times, with_values);
    }
  });
}

std::vector<GradientStatistics> GradientStep::gradient_statistics(bool with_values) {
  if (deepspeed_) return watched_;
  const torch::nn::Module& module = *model_.module();
  if (const ShardedModel* const model = sharded()) {
    return train::gradient_statistics(module, *model, world_.device(), 1, with_values);
  }
  if (!world_.is_main()) return {};
  return train::gradient_statistics(module, 1, with_values);
}

void GradientStep::settle() {
  if (fused_ && scaler_) fused_->settle();
  finish_update();
}

void GradientStep::finish_update() {
  if (ShardedModel* divided = sharded()) divided->finish_step();
}

LossResult GradientStep::run(StepBatches& batches, torch::optim::Optimizer& optimizer) {
  stepped_ = true;
  if (custom_) {
    refuse_deepspeed();
    refuse_scaler("the program's own step (set_optimize_step)");
    refuse_division("the program's own step (set_optimize_step)");
    const std::vector<Batch> all = batches.all_on_device();
    StepBatches on_device = batches.with(all);
    const std::function<LossResult()> closure = [&] { return evaluate(on_device); };
    return custom_({all, model_, optimizer, closure});
  }
  if (deepspeed_) {
    watched_.clear();
    LossResult result = deepspeed_->run(
        batches, [this](const Batch& batch) { return forward(batch); }, clock_);
    deepspeed_->set_before_step({});
    stepped_ = deepspeed_->was_step_applied();
    return result;
  }
  meet(optimizer);
  if (fused_) return run_fused(batches);
  if (needs_closure_) return run_with_closure(batches, optimizer);
  LossResult result = evaluate(batches);
  stepped_ = finite_;
  if (finite_) parallel_->update(optimizer);
  if (scaler_) scaler_->update();
  return result;
}

}  // namespace lockstep::train
