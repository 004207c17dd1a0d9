#pragma once

#include <lockstep/trainer.h>

#include <functional>

#include "train/metric_sums.h"

namespace lockstep::train {

// Runs before and after each batch of an evaluation.
struct BatchHooks {
  std::function<void(const Batch&)> start;
  std::function<void(const LossResult&)> end;
};

struct Evaluated {
  const Model& model;
  // Parameters are put together as the model runs: a rank with fewer batches than another
  // runs it on a sample that does not count, so that nobody waits for it.
  bool in_step = false;
};

// Loss and metrics over all samples of a loader, each on one rank, without gradients; of
// several by name until the shortest ends. The model is in evaluation mode meanwhile, and
// in the mode it had after. Every rank calls it.
Evaluation evaluate(const DataSource& data, const World& world, c10::ScalarType dtype,
                    const std::function<LossResult(const Batch&)>& forward, const Evaluated& evaluated,
                    const TrainConfig& config, const BatchHooks& hooks);

// The model's outputs in the order of the data, on the CPU of every rank.
at::Tensor predict(const Loader& whole, const World& world, c10::ScalarType dtype, const Evaluated& evaluated,
                   const TrainConfig& config);

}  // namespace lockstep::train
