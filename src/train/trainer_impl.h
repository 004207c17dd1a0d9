#pragma once

#include <lockstep/error.h>
#include <lockstep/tracker_set.h>
#include <lockstep/trainer.h>
#include <lockstep/weight_average.h>
#include <lockstep/world.h>

#include <limits>
#include <optional>
#include <string>

#include "train/gradient_step.h"
#include "train/progress_bar.h"
#include "train/step_clock.h"

namespace lockstep {

// What a trainer keeps from one call to the next. Everything of one fit() is in
// train/fit_loop.h.
struct Trainer::Impl {
  Impl(Trainer& self, World& world, Model model, torch::optim::Optimizer* optimizer,
       GradientFreeOptimizer* gradient_free, TrainConfig config, Loss loss);

  // Runs hook and callbacks of a stage, in the order that Stage tells; `count` is what
  // called_every divides.
  void begin(Stage stage, int64_t count, const Batch& batch = {});
  void end(Stage stage, int64_t count, const LossResult& outcome = at::Tensor());
  Evaluation evaluate(const DataSource& data, const std::string& phase, Stage batch_start, Stage batch_end);
  Evaluation validate(const DataSource& data);
  void call_callbacks(Stage at, int64_t count);
  // ConfigError while fit() runs.
  void check_no_fit() const;
  // ConfigError where the model is divided over the ranks.
  void check_not_divided() const;
  // A new average of the weights as they are.
  void make_average();
  // Puts "PHASE_loss" and the metrics where callbacks see them.
  void note(const std::string& phase, const Evaluation& evaluation);

  Trainer& self;
  World& world;
  const std::optional<DeepSpeedConfig> deepspeed;  // what config.deepspeed_config says
  const TrainConfig config;
  const c10::ScalarType dtype;
  Model model;
  const Loss loss;
  torch::optim::Optimizer* optimizer;  // one of the two
  GradientFreeOptimizer* gradient_free;
  train::StepClock clock;
  train::GradientStep step;
  std::optional<WeightAverage> average;
  std::function<void()> preemption_save;

  Stage stage = Stage::kIdle;
  TrainResult result;
  int64_t epochs_done = 0;
  double best_validation = std::numeric_limits<double>::infinity();
  double best_saved = std::numeric_limits<double>::infinity();  // of the validations that were saved

  // Of the running fit().
  TrackerSet* trackers = nullptr;
  TrackerSet no_trackers;
  train::ProgressBar* bar = nullptr;
  std::string run_folder;
  std::string stop_reason;
  bool save_requested = false;
  bool fitting = false;
};

}  // namespace lockstep
