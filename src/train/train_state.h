#pragma once

#include <lockstep/callback.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/model.h>
#include <lockstep/weight_average.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/batch_source.h"
#include "train/metric_sums.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {
class GradientFreeOptimizer;
class ShardedModel;
}  // namespace lockstep

namespace lockstep::train {

class DeepSpeedStep;

// Everything that a training needs to go on: what a checkpoint holds. Refers to the
// trainer's parts.
struct TrainState {
  const Model& model;
  torch::optim::Optimizer* optimizer = nullptr;  // one of the two
  GradientFreeOptimizer* gradient_free = nullptr;
  ShardedModel* sharded = nullptr;     // where the model is divided over the ranks
  DeepSpeedStep* deepspeed = nullptr;  // where there is one
  GradScaler* scaler = nullptr;        // where there is one
  WeightAverage* average = nullptr;    // where there is one
  BatchSource& data;
  MetricSums& sums;  // of the epoch so far
  const std::vector<std::shared_ptr<Callback>>& callbacks;
  TrainResult& result;
  int64_t& epochs_done;
  double& best_validation;
  double& best_saved;
  std::string& stopped;  // why all ranks have ended it before its time; empty: they have not
  int64_t max_iter = 0;
};

}  // namespace lockstep::train
