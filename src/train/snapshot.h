#pragma once

#include <lockstep/callbacks.h>
#include <lockstep/config.h>
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

// The progress of a training, which a checkpoint keeps in addition to weights, optimizer and data.
struct TrainingProgress {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  TrainResult result;
  int64_t epochs_done = 0;
  // Of best_metric; kNone, or -kNone if the greatest is the best: there is no validation yet.
  double best_validation = kNone;
  double best_saved = kNone;             // the best validation with saved weights
  std::vector<double> best_values = {};  // of the checkpoints that checkpoint_keep_best keeps
  double trained_s = 0;                  // time of training at the last save
  // Of all ranks: after each epoch, and of each validation.
  std::vector<double> train_losses = {};
  std::vector<double> val_losses = {};
  // Why all ranks ended training before max_iter; empty: they did not.
  std::string stopped;
};

// Everything that a training needs to resume: what a checkpoint holds. Refers to the trainer's parts.
struct TrainState {
  Step& step;
  WeightAverage* average = nullptr;  // null: no average
  BatchSource& data;
  MetricSums& sums;  // of the epoch so far
  const std::vector<std::shared_ptr<Callback>>& callbacks;
  TrainingProgress& progress;
  const TrainConfig& config;
};

// Converts the state of a training to a snapshot, and back. Weights are under "model." and their names,
// as all readers of checkpoints expect; everything else is under "lockstep/". Collective. Rank 0 has
// the content and writes it; if the model is sharded, each rank has its shards. `weights_only`: without
// everything that only a resume needs.
checkpoint::Snapshot take_snapshot(const TrainState& state, const World& world, bool weights_only);

// ConfigError: another model or another optimizer, and what differs; the model is unchanged then.
// Collective.
void restore_snapshot(const checkpoint::Reader& reader, TrainState& state, const World& world, uint64_t seed);

}  // namespace lockstep::train
