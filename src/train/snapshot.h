#pragma once

#include <lockstep/callbacks.h>
#include <lockstep/optim.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "train/batch_source.h"
#include "train/metric_sums.h"

namespace lockstep {
class World;
}

namespace lockstep::train {

class Step;

// How far a training has come: what a checkpoint keeps beside weights, optimizer and data.
struct TrainingProgress {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  TrainResult result;
  int64_t epochs_done = 0;
  double best_validation = kNone;
  double best_saved = kNone;  // of the validations whose weights were saved
  // Why all ranks have ended training before max_iter; empty: they have not.
  std::string stopped;
};

// Everything that a training needs to resume: what a checkpoint holds. Refers to the trainer's parts.
struct TrainState {
  Step& step;
  WeightAverage* average = nullptr;  // null: there is none
  BatchSource& data;
  MetricSums& sums;  // of the epoch so far
  const std::vector<std::shared_ptr<Callback>>& callbacks;
  TrainingProgress& progress;
  int64_t max_iter = 0;
};

// A training's state as a snapshot, and back. Weights are under "model." and their
// names, as everything that reads checkpoints expects; all else is under "lockstep/".
// Collective; the content is on rank 0 alone, which writes it, unless the model is sharded:
// then each rank has its shards.
checkpoint::Snapshot take_snapshot(const TrainState& state, const World& world, const std::string& config);

// ConfigError: another model or another optimizer, and what differs; the state is
// unchanged then as far as the model goes.
void restore_snapshot(const checkpoint::Reader& reader, TrainState& state, const World& world, uint64_t seed);

}  // namespace lockstep::train
