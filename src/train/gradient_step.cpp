#include "train/gradient_step.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "comm/communicator_internal.h"
#include "parallel/parallel_model.h"

namespace lockstep::train {
namespace {

// Optimizers that evaluate the loss several times in a step.
bool needs_closure(const torch::optim::Optimizer& optimizer) {
  const std::string name = optimizer_class(optimizer);
  return name == "LBFGS" || name == "AdamLbfgs";
}

}  // namespace

int64_t GradientStep::skipped_steps() const { return parts_.scaler ? parts_.scaler->skipped_steps() : 0; }

double GradientStep::loss_scale() const { return parts_.scaler ? parts_.scaler->current_scale() : 1; }

bool GradientStep::accepts_loss(double loss) {
  if (std::isfinite(loss)) return true;
  if (!parts_.scaler) return false;
  parts_.scaler->check_progress();  // steps that overflow are skipped
  return true;
}

void GradientStep::check_replaceable() const {
  if (config().zero.stage == 0) return;
  throw ConfigError(
      "train", fmt::format("the optimizer cannot be changed with zero_stage {}, which shards the model for "
                           "the one it was made with: set it to 0, or make another trainer",
                           config().zero.stage));
}

void GradientStep::backward(const LossResult& result, double weight) {
  at::Tensor loss = weight == 1 ? result.loss : result.loss * weight;
  if (parts_.scaler) loss = parts_.scaler->scale(loss);
  if (!loss.requires_grad()) {
    throw ConfigError("train", "the loss does not depend on any parameter that takes a gradient");
  }
  loss.backward();
}

LossResult GradientStep::compute_gradients(StepBatches& batches) {
  const auto samples = static_cast<double>(batches.samples());
  parallel().zero_grad();
  LossResult total{at::Tensor()};
  for (size_t i = 0; i < batches.size(); ++i) {
    std::optional<GradientSync::NoSync> not_yet;
    if (i + 1 < batches.size()) {
      if (auto scope = parallel().accumulate()) not_yet.emplace(std::move(*scope));
    }
    clock().enter(base::Phase::kData);
    const Batch& batch = batches.on_device(i);
    clock().enter(base::Phase::kForward);
    parallel().prepare_forward();
    LossResult result = forward(batch);
    clock().enter(base::Phase::kBackward);
    if (batches.size() == 1) {
      backward(result, 1);
      total.loss = result.loss.detach();
      total.metrics = std::move(result.metrics);
      total.counts = std::move(result.counts);
    } else {
      const double weight = static_cast<double>(batches.samples_of(i)) / samples;
      backward(result, weight);
      add_weighted(total, result, weight);
    }
  }
  clock().enter(base::Phase::kOptimizer);
  finish_gradients();
  return total;
}

void GradientStep::finish_gradients() {
  if (fused_) {
    if (parts_.scaler)
      found_inf_ = parts_.scaler->unscale_on_device(parallel().flat_gradients(), world().communicator());
    finite_ = true;  // otherwise the kernels change nothing
  } else {
    finite_ = !parts_.scaler || parts_.scaler->unscale(parallel().flat_gradients(), world().communicator());
  }
  // A recorded step would compute it in every replay or in none.
  if (wants_norm_ && !recorded_) norm_ = parallel().grad_norm();
  if (!finite_) return;
  const torch::NoGradGuard no_grad;
  if (config().clip_grad_value > 0) {
    for (const at::Tensor& flat : parallel().flat_gradients()) {
      flat.clamp_(-config().clip_grad_value, config().clip_grad_value);
    }
  }
  if (config().clip_grad_norm > 0) parallel().clip_grad_norm(config().clip_grad_norm);
}

void GradientStep::refuse_scaler(const std::string& what) const {
  if (!parts_.scaler) return;
  throw ConfigError("train", fmt::format("precision fp16 may have to leave out a step, and {} cannot: set "
                                         "precision to bf16 or fp32",
                                         what));
}

void GradientStep::refuse_sharding(const std::string& what) const {
  if (config().zero.stage == 0) return;
  throw ConfigError("train", fmt::format("{} works on whole gradients, which no rank has with zero_stage {}: "
                                         "set it to 0",
                                         what, config().zero.stage));
}

LossResult GradientStep::run_with_closure(StepBatches& batches) {
  const std::string what =
      fmt::format("the optimizer {}, which evaluates the loss itself,", optimizer_class(optimizer_));
  refuse_scaler(what);
  refuse_sharding(what);
  StepBatches all = batches.with(batches.all_on_device());  // each evaluation needs them
  LossResult first{at::Tensor()};
  optimizer_.step([&] {
    const LossResult result = compute_gradients(all);
    if (!first.loss.defined()) first = result;
    // The optimizer decides by the loss when to stop: all ranks must see the same one.
    const at::Tensor mean = result.loss.clone();
    world().communicator().all_reduce(mean, ReduceOp::kMean).wait();
    return mean;
  });
  return first;
}

void GradientStep::prepare() {
  if (is_prepared_) return;
  is_prepared_ = true;
  needs_closure_ = needs_closure(optimizer_);
  fused_.reset();
  recorded_.reset();
  recorded_gradients_.clear();
  // The average of weights needs to know whether there was a step.
  const bool host_must_know = parts_.scaler && config().ema_decay > 0;
  const bool is_whole = config().zero.stage == 0;
  if (config().fused_optimizer && !world().device().is_cpu() && !parts_.custom && !host_must_know &&
      is_whole) {
    fused_ = optim::FusedStep::make(optimizer_);
  }
  if (!config().cuda_graph) return;
  const RecordingFacts facts{.device = world().device(),
                             .num_ranks = world().size(),
                             .backend = world().communicator().backend(),
                             .has_own_step = static_cast<bool>(parts_.custom),
                             .optimizer_objection = optim::FusedStep::objection(optimizer_)};
  if (const std::string objection = objection_to_recording(config(), facts); !objection.empty()) {
    throw ConfigError("train", objection);
  }
  recorded_.emplace();
}

LossResult GradientStep::run_fused(StepBatches& batches) {
  fused_->prepare();
  const auto body = [this](StepBatches& inputs) {
    LossResult result = compute_gradients(inputs);
    fused_->launch(found_inf_);
    if (parts_.scaler) parts_.scaler->update();
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
    forget_record();
    recorded_options_ = options;
  }
  clock().enter(base::Phase::kForward);
  LossResult result = recorded_->run(batches, body);
  show_recorded_gradients();
  comm::watch_graph(world().communicator(), "a recorded step");
  fused_->count();
  return result;
}

// After a replay the gradients are where the record writes them. A normal step in between, of the last batch
// of an epoch, has given the parameters other ones.
void GradientStep::show_recorded_gradients() {
  if (!recorded_->replayed()) {
    has_recorded_gradients_ = false;
    return;
  }
  if (std::exchange(has_recorded_gradients_, true) && !recorded_gradients_.empty()) return;
  const bool is_new = recorded_gradients_.empty();
  size_t next = 0;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (is_new) {
        recorded_gradients_.push_back(parameter.grad());
      } else {
        parameter.mutable_grad() = recorded_gradients_[next++];
      }
    }
  }
}

void GradientStep::forget_record() {
  if (recorded_) recorded_->forget();
  recorded_gradients_.clear();
}

std::vector<GradientStatistics> GradientStep::gradient_statistics(bool with_values) {
  const torch::nn::Module& module = *parts_.model.module();
  if (const ShardedModel* const model = sharded()) {
    return train::gradient_statistics(module, *model, world().device(), 1, with_values);
  }
  if (!world().is_main()) return {};
  return train::gradient_statistics(module, 1, with_values);
}

void GradientStep::finish_state() {
  if (fused_ && parts_.scaler) fused_->fetch_counts();
  finish_update();
}

at::Tensor GradientStep::gradient_norm() {
  wants_norm_ = false;
  if (recorded_) return parallel().grad_norm();
  return std::exchange(norm_, at::Tensor());
}

LossResult GradientStep::run(StepBatches& batches) {
  changed_weights_ = true;
  if (parts_.custom) return run_custom(batches);
  prepare();
  if (fused_) return run_fused(batches);
  if (needs_closure_) return run_with_closure(batches);
  LossResult result = compute_gradients(batches);
  changed_weights_ = finite_;
  if (finite_) parallel().update(optimizer_);
  if (parts_.scaler) parts_.scaler->update();
  return result;
}

LossResult GradientStep::run_custom(StepBatches& batches) {
  refuse_scaler("the program's own step (set_optimize_step)");
  refuse_sharding("the program's own step (set_optimize_step)");
  const std::vector<Batch> all = batches.all_on_device();
  StepBatches on_device = batches.with(all);
  const std::function<LossResult()> closure = [&] { return compute_gradients(on_device); };
  return parts_.custom({all, parts_.model, optimizer_, closure});
}

void GradientStep::add_to(checkpoint::Snapshot& snapshot) const {
  parallel().add_to(snapshot, optimizer_);
  if (world().is_main() && parts_.scaler) snapshot.metadata["scaler"] = parts_.scaler->state();
}

void GradientStep::restore_rest(const checkpoint::Reader& reader) {
  const Json& metadata = reader.metadata();
  if (parts_.scaler && metadata.contains("scaler")) {
    parts_.scaler->load_state(metadata.at("scaler"));
    forget_record();  // it reads the tensors of the scaler before
  }
}

}  // namespace lockstep::train
