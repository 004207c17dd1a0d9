#pragma once

#include <lockstep/engine.h>
#include <lockstep/trainer.h>

#include <functional>
#include <vector>

#include "train/step_batches.h"
#include "train/step_clock.h"

namespace lockstep::train {

// The engine of a DeepSpeed configuration as the trainer's step.
class DeepSpeedStep final : public EngineCore {
 public:
  // The optimizer is the configuration's where it has one, else `own`. ConfigError as
  // EngineCore's.
  DeepSpeedStep(const World& world, const Model& model, DeepSpeedConfig config, torch::optim::Optimizer* own);

  // One step of the optimizer: as many batches as the configuration accumulates. Returns
  // their mean, as the engine weighs them: each alike. `forward` runs one of them.
  LossResult run(StepBatches& batches, const std::function<LossResult(const Batch&)>& forward,
                 StepClock& clock);

  // Another training of the same weights begins: the schedule and the counts of steps and
  // samples do so, too; the optimizer's state and the loss scale go on.
  void restart();
  // Called before each update with what the gradients are multiplied by, undefined: by 1; empty:
  // nothing is. They are forgotten after the update.
  void set_before_step(std::function<void(const at::Tensor& factor)> function);
  // Whether a step may be left out because it overflowed.
  bool may_skip() const;
  bool prepare_evaluation();
  ShardedModel* sharded();
  std::chrono::nanoseconds exposed_wait();

  // For checkpoints: JSON.
  Json state();
  void load_state(const Json& state, int64_t step);
};

// The configuration of a training that `file` governs: its batch, dtype, precision,
// clipping and stage are the file's; rank 0 warns of values that differ from the defaults and
// give way to them. ConfigError: what contradicts it, or cannot go with it.
TrainConfig governed_by(const DeepSpeedConfig& file, TrainConfig config, const World& world);

}  // namespace lockstep::train
