#pragma once

#include <lockstep/grad_scaler.h>
#include <lockstep/trainer.h>

#include <optional>
#include <vector>

#include "optim/fused_step.h"
#include "train/deepspeed_step.h"
#include "train/gradient_statistics.h"
#include "train/parallel_model.h"
#include "train/recorded_step.h"
#include "train/step_batches.h"
#include "train/step_clock.h"

namespace lockstep::train {

// One step of an optimizer that uses gradients, over one or several batches: forward in
// the configured precision, backward with the reduction over the ranks, unscaling,
// clipping, update.
class GradientStep {
 public:
  // All must outlive it.
  // With `deepspeed` the step is an engine's, whose optimizer may be another one: see deepspeed().
  GradientStep(const World& world, const Model& model, torch::optim::Optimizer* optimizer, const Loss& loss,
               const TrainConfig& config, const std::optional<DeepSpeedConfig>& deepspeed, StepClock& clock);

  // Returns the mean over the batches, weighted by their samples. ConfigError: the forward does
  // not take the batch, says which one.
  LossResult run(StepBatches& batches, torch::optim::Optimizer& optimizer);

  void set_custom(OptimizeStep step) { custom_ = std::move(step); }

  // Of one fit(): its optimizer's state may have been loaded, and is looked at anew.
  void begin_fit() { known_optimizer_ = nullptr; }
  // Before the optimizer's state is read: what was counted on the device only is brought
  // to it. Waits for the device.
  void settle();
  // Before parameters are read: updates of a divided model may still be on their way.
  void finish_update();

  // Forward alone, in the configured precision.
  LossResult forward(const Batch& batch) const;

  // As ParallelModel's.
  bool prepare_evaluation();
  ShardedModel* sharded();
  std::chrono::nanoseconds exposed_wait();
  // Null without a DeepSpeed configuration.
  DeepSpeedStep* deepspeed() const { return deepspeed_.get(); }
  // Where precision is fp16.
  std::optional<GradScaler>& scaler() { return scaler_; }
  // Whether a step that overflows is left out.
  bool may_skip() const { return scaler_ || (deepspeed_ && deepspeed_->may_skip()); }
  // Those that overflowed, and the loss scale of the next one; 1 without any.
  int64_t skipped_steps() const;
  double loss_scale() const;
  // For the next run(): gradient_statistics() is called after it, with these values or without. An
  // engine has forgotten its gradients by then.
  void watch_gradients(bool with_values);
  // Of the gradients that the last run() has updated by, on rank 0; elsewhere empty. Every rank
  // calls it.
  std::vector<GradientStatistics> gradient_statistics(bool with_values);
  // Whether the last run() changed the weights; false where fp16 overflowed, and the host
  // was told of it.
  bool stepped() const { return stepped_; }

 private:
  LossResult evaluate(StepBatches& batches);
  void backward(const LossResult& result, double weight);
  void finish_gradients();
  // Forward, backward and update without a word from the device.
  LossResult run_fused(StepBatches& batches);
  void meet(torch::optim::Optimizer& optimizer);
  // what: cannot be done with it.
  void refuse_scaler(const std::string& what) const;
  void refuse_division(const std::string& what) const;
  void refuse_deepspeed() const;
  LossResult run_with_closure(StepBatches& batches, torch::optim::Optimizer& optimizer);

  const World& world_;
  const Model& model_;
  const Loss& loss_;
  const TrainConfig& config_;
  StepClock& clock_;
  const std::unique_ptr<DeepSpeedStep> deepspeed_;  // one of the two
  const std::unique_ptr<ParallelModel> parallel_;
  std::optional<GradScaler> scaler_;
  OptimizeStep custom_;
  const torch::optim::Optimizer* known_optimizer_ = nullptr;
  bool needs_closure_ = false;               // what known_optimizer_ does
  std::unique_ptr<optim::FusedStep> fused_;  // its step, where kernels for all parameters do it
  std::optional<RecordedStep> recorded_;     // where config_.cuda_graph is set
  std::vector<double> recorded_options_;
  at::Tensor found_inf_;  // of the running fused step
  bool finite_ = true;
  bool stepped_ = false;
  std::vector<GradientStatistics> watched_;  // of an engine's last step, where they were asked for
};

}  // namespace lockstep::train
