#pragma once

#include "train/step.h"

namespace lockstep {
class GradientFreeOptimizer;
}

namespace lockstep::train {

// One step of a search without gradients: the optimizer proposes candidates, every rank evaluates its
// share of them on the same batches, and the model takes the best point found so far.
class SearchStep final : public Step {
 public:
  // The optimizer must outlive it, and be equal on all ranks.
  SearchStep(StepParts& parts, GradientFreeOptimizer& optimizer) : Step(parts), optimizer_(optimizer) {}

  // Returns the lowest loss of the candidates.
  LossResult run(StepBatches& batches) override;

  void check_fit(int64_t batches_per_epoch) const override;
  bool shares_samples() const override { return true; }
  // A candidate may have a loss that is not finite: it is a bad candidate, not an error.
  bool accepts_loss(double) override { return true; }

  void add_to(checkpoint::Snapshot& snapshot) const override;

 private:
  void restore_rest(const checkpoint::Reader& reader) override;

  GradientFreeOptimizer& optimizer_;
};

}  // namespace lockstep::train
