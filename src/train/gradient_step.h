#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "optim/fused_step.h"
#include "train/recorded_step.h"
#include "train/step.h"

namespace lockstep::train {

// One step of an optimizer that uses gradients, over one or several batches: forward in
// the configured precision, backward with the reduction over the ranks, unscaling,
// clipping, update.
class GradientStep final : public Step {
 public:
  // The optimizer must outlive it. A sharded model is sharded for this optimizer.
  GradientStep(StepParts& parts, torch::optim::Optimizer& optimizer) : Step(parts), optimizer_(optimizer) {}

  LossResult run(StepBatches& batches) override;
  bool changed_weights() const override { return changed_weights_; }

  void begin_fit() override { is_prepared_ = false; }
  bool accepts_loss(double loss) override;
  bool may_skip() const override { return parts_.scaler.has_value(); }
  int64_t skipped_steps() const override;
  double loss_scale() const override;
  torch::optim::Optimizer* optimizer() const override { return &optimizer_; }
  void check_replaceable() const override;
  void watch_gradient_norm() override { wants_norm_ = true; }
  at::Tensor gradient_norm() override;
  std::vector<GradientStatistics> gradient_statistics(bool with_values) override;

  void finish_state() override;

  void add_to(checkpoint::Snapshot& snapshot) const override;

 private:
  void restore_rest(const checkpoint::Reader& reader) override;

  // Inspects the optimizer and its state, and selects one of the variants below.
  void prepare();
  // Forward, backward and reduction over the batches. Gradients are then ready for the update.
  LossResult compute_gradients(StepBatches& batches);
  void backward(const LossResult& result, double weight);
  void finish_gradients();
  // Forward, backward and update; the host waits for no value.
  LossResult run_fused(StepBatches& batches);
  void show_recorded_gradients();
  void forget_record();
  LossResult run_with_closure(StepBatches& batches);
  LossResult run_custom(StepBatches& batches);
  // ConfigError if fp16 may skip steps, because `what` cannot.
  void refuse_scaler(const std::string& what) const;
  // ConfigError if gradients are sharded, because `what` needs complete ones.
  void refuse_sharding(const std::string& what) const;

  torch::optim::Optimizer& optimizer_;
  bool is_prepared_ = false;
  bool needs_closure_ = false;               // the optimizer evaluates the loss itself
  std::unique_ptr<optim::FusedStep> fused_;  // the update, if one kernel does it for all parameters
  std::optional<RecordedStep> recorded_;     // if config.cuda_graph is set
  std::vector<double> recorded_options_;
  // The gradients that the record writes, in the order of the parameters; empty: nothing is recorded.
  std::vector<at::Tensor> recorded_gradients_;
  bool has_recorded_gradients_ = false;  // the parameters have these, not those of a normal step
  at::Tensor found_inf_;                 // of the running fused step
  at::Tensor norm_;                      // of the last step's gradients, if requested
  bool wants_norm_ = false;
  bool finite_ = true;
  bool changed_weights_ = false;
};

}  // namespace lockstep::train
