#pragma once

#include <lockstep/deepspeed.h>

#include <memory>
#include <vector>

#include "train/step.h"

namespace lockstep::train {

// The engine of a DeepSpeed configuration as the trainer's step.
class EngineStep final : public Step {
 public:
  // The optimizer is the configuration's if it has one, otherwise `own`, which must outlive the step.
  // ConfigError: as EngineCore.
  EngineStep(StepParts& parts, const DeepSpeedConfig& file, torch::optim::Optimizer& own);
  ~EngineStep() override;

  // Returns the mean over the batches, each with the same weight, as in the engine.
  LossResult run(StepBatches& batches) override;
  bool changed_weights() const override;

  void check_fit(int64_t batches_per_epoch) const override;
  // The schedule and the counts of steps and samples start again; the optimizer's state and the loss
  // scale stay.
  void begin_fit() override;
  bool takes_full_windows() const override { return true; }
  bool accepts_loss(double loss) override;
  bool may_skip() const override;
  int64_t skipped_steps() const override;
  double loss_scale() const override;
  torch::optim::Optimizer* optimizer() const override;
  void check_replaceable() const override;

  // The engine frees its gradients in the update, so their statistics are computed before it.
  void watch_gradients(bool with_values) override;
  // The engine computes the norm in each step.
  at::Tensor gradient_norm() override;
  std::vector<GradientStatistics> gradient_statistics(bool) override { return watched_; }

  parallel::ParallelModel& parallel() const override;

  void add_to(checkpoint::Snapshot& snapshot) const override;

 private:
  class Core;

  void restore_rest(const checkpoint::Reader& reader) override;

  const std::unique_ptr<Core> core_;
  std::vector<GradientStatistics> watched_;  // of the last step, if requested
};

// The configuration of a training by `file`: batch, dtype, precision, clipping and stage are the
// file's. Rank 0 warns about values that differ from the defaults and that the file overrides.
// ConfigError: an option that contradicts the file.
TrainConfig governed_by(const DeepSpeedConfig& file, TrainConfig config, const World& world);

}  // namespace lockstep::train
