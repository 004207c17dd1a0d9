#pragma once

#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <lockstep/track.h>
#include <lockstep/trainer.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "train/progress_bar.h"
#include "train/snapshot.h"
#include "train/step.h"

namespace lockstep {

namespace train {
class FitLoop;
}

// The state that a trainer keeps between calls. State of one fit() is in train/fit_loop.h.
struct Trainer::Impl {
  // One of the two optimizers is null.
  Impl(Trainer& self, World& world, Model model, torch::optim::Optimizer* optimizer,
       GradientFreeOptimizer* search, TrainConfig config, Loss loss);

  // Runs hook and callbacks of a stage, in the order that Stage describes. A callback runs if its
  // called_every divides `count`.
  void begin(Stage stage, int64_t count, const Batch& batch = {});
  void end(Stage stage, int64_t count, const LossResult& outcome = at::Tensor());
  // `limit`: the most batches of each rank.
  Evaluation evaluate(const DataSource& data, const std::string& phase, std::optional<int64_t> limit = {});
  // Over these data, unless they are empty, and `also_sets` over the sets of add_validation_set().
  Evaluation validate(const DataSource& data, bool also_sets, std::optional<int64_t> limit);
  void call_callbacks(Stage at, int64_t count);
  // Uses another step while the result exists. ConfigError: fit() is running, or the step cannot be
  // replaced.
  OptimizerScope replace_step(std::unique_ptr<train::Step> replacement);
  // Starts the average with the current weights.
  void make_average();
  // Stores "PHASE_loss" and the metrics in the result that callbacks read.
  void record(const std::string& phase, const Evaluation& evaluation);

  Trainer& self;
  World& world;
  const std::optional<DeepSpeedConfig> deepspeed;  // content of config.deepspeed_config
  const TrainConfig config;
  const c10::ScalarType dtype;
  Model model;
  const Loss loss;
  train::StepClock clock;
  train::StepParts parts;
  std::unique_ptr<train::Step> step;
  std::optional<WeightAverage> average;
  std::function<void()> preemption_save;
  std::map<std::string, DataSource> validation_sets;

  Stage stage = Stage::kIdle;
  train::TrainingProgress progress;

  // State of the running fit().
  TrackerSet* trackers = nullptr;
  std::function<void()> write_waiting;  // before others use the trackers: writes what waits for them
  TrackerSet no_trackers;
  train::ProgressBar* bar = nullptr;
  train::FitLoop* loop = nullptr;
  std::string run_folder;
  std::string stop_reason;
  bool save_requested = false;
  bool fitting = false;
};

}  // namespace lockstep
