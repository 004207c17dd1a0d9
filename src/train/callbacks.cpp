#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <lockstep/track.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <array>

#include "base/log.h"
#include "train/gradient_statistics.h"

namespace lockstep {

const char* to_string(Stage stage) {
  static constexpr std::array kNames = {"idle",
                                        "train_start",
                                        "train_end",
                                        "train_epoch_start",
                                        "train_epoch_end",
                                        "train_batch_start",
                                        "train_batch_end",
                                        "val_epoch_start",
                                        "val_epoch_end",
                                        "val_batch_start",
                                        "val_batch_end",
                                        "test_batch_start",
                                        "test_batch_end"};
  return kNames[static_cast<size_t>(stage)];
}

Callback::Callback(const CallbackOptions& options) : options_(options) {
  if (options.on == Stage::kIdle) {
    throw ConfigError("train", "a callback needs a stage to be called at: idle is none");
  }
  if (options.called_every < 0) {
    throw ConfigError("train", fmt::format("called_every must be at least 0: {}", options.called_every));
  }
}

Callback::Callback(const CallbackOptions& options, std::function<void(Trainer&)> function)
    : Callback(options) {
  if (!function) throw ConfigError("train", "a callback needs a function, or a class that overrides run()");
  function_ = std::move(function);
}

Callback::~Callback() = default;

void Callback::call(Trainer& trainer, int64_t count) {
  const bool always = options_.on == Stage::kTrainStart || options_.on == Stage::kTrainEnd;
  if (!always && (options_.called_every == 0 || count % options_.called_every != 0)) return;
  if (options_.condition && !options_.condition(trainer)) return;
  if (options_.modify_result) trainer.modify_result(options_.modify_result);
  run(trainer);
}

FitCallback::FitCallback(FitAction action, const CallbackOptions& options)
    : Callback(options), action_(action) {
  const Stage on = options.on;
  const bool per_rank = on == Stage::kValBatchStart || on == Stage::kValBatchEnd ||
                        on == Stage::kTestBatchStart || on == Stage::kTestBatchEnd;
  if (!per_rank || (action != FitAction::kLogModel && action != FitAction::kSaveCheckpoint)) return;
  throw ConfigError(
      "train",
      fmt::format("{} needs all ranks, which have different numbers of batches at {}: give it "
                  "another stage",
                  action == FitAction::kLogModel ? "LogModelTracker" : "SaveCheckpoint", to_string(on)));
}

void FitCallback::run(Trainer& trainer) { trainer.act(action_); }

SaveBestCheckpoint::SaveBestCheckpoint(const CallbackOptions& options)
    : FitCallback(FitAction::kSaveBestCheckpoint, options) {
  if (options.on == Stage::kValEpochEnd) return;
  throw ConfigError("train",
                    fmt::format("SaveBestCheckpoint looks at a validation: its stage must be {}, not {}",
                                to_string(Stage::kValEpochEnd), to_string(options.on)));
}

LoadCheckpoint::LoadCheckpoint(std::string path)
    : Callback(CallbackOptions{.on = Stage::kTrainStart}), path_(std::move(path)) {
  if (path_.empty()) throw ConfigError("train", "LoadCheckpoint needs a path, or auto");
}

void Callback::run(Trainer& trainer) {
  if (function_) function_(trainer);
}

ScheduleLearningRate::ScheduleLearningRate(LearningRateSchedule schedule, Per per)
    : Callback({.on = per == Per::kEpoch ? Stage::kTrainEpochStart : Stage::kTrainBatchStart}),
      schedule_(std::move(schedule)),
      per_(per) {}

ScheduleLearningRate::~ScheduleLearningRate() = default;

void ScheduleLearningRate::run(Trainer& trainer) {
  // The initial rates of the groups stay those of the first training: a second training starts its
  // schedule again.
  if (!scheduled_ || optimizer_ != &trainer.optimizer()) {
    optimizer_ = &trainer.optimizer();
    scheduled_ = std::make_unique<ScheduledLearningRate>(trainer.optimizer(), schedule_);
  }
  if (!loaded_.empty()) {
    scheduled_->load_state(Json::parse(loaded_));
    loaded_.clear();
  }
  const TrainResult& result = trainer.result();
  scheduled_->set_step(per_ == Per::kEpoch ? result.iteration - 1 : result.step);
}

std::string ScheduleLearningRate::state() const {
  return scheduled_ && loaded_.empty() ? scheduled_->state().dump() : loaded_;
}

void ScheduleLearningRate::load_state(const std::string& state) { loaded_ = state; }

ReduceLearningRateOnPlateau::ReduceLearningRateOnPlateau(const ReduceOnPlateauOptions& options)
    : Callback({.on = options.monitor.starts_with("val_") ? Stage::kValEpochEnd : Stage::kTrainEpochEnd}),
      plateau_(options) {}

void ReduceLearningRateOnPlateau::run(Trainer& trainer) {
  const std::string& monitor = plateau_.options().monitor;
  if (!plateau_.observe(trainer.metric(monitor), trainer.optimizer())) return;
  base::log_info("train", "{} has not improved on {:.6g}: the learning rate is now {:.6g}", monitor,
                 plateau_.best().value_or(0), learning_rates(trainer.optimizer()).front());
}

void ReduceLearningRateOnPlateau::reset() { plateau_ = ReduceOnPlateau(plateau_.options()); }

std::string ReduceLearningRateOnPlateau::state() const { return plateau_.state().dump(); }

void ReduceLearningRateOnPlateau::load_state(const std::string& state) {
  plateau_.load_state(Json::parse(state));
}

namespace {

// The stage at which a metric has a new value.
Stage stage_of(const std::string& monitor) {
  return monitor.starts_with("val_") ? Stage::kValEpochEnd : Stage::kTrainEpochEnd;
}

}  // namespace

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options)
    : Callback({.on = stage_of(options.monitor)}), options_(options) {
  if (options.patience < 0) {
    throw ConfigError("train", fmt::format("patience must be at least 0: {}", options.patience));
  }
}

void EarlyStopping::run(Trainer& trainer) {
  const double value = trainer.metric(options_.monitor);
  const double sign = options_.mode == MetricMode::kMin ? 1 : -1;
  // NaN is never better.
  if (!best_ ? value == value : sign * value < sign * *best_ - options_.min_delta) {
    best_ = value;
    misses_ = 0;
    return;
  }
  if (++misses_ <= options_.patience) return;
  trainer.stop_training(fmt::format("{} has not improved on {:.6g} for {} times", options_.monitor,
                                    best_.value_or(value), misses_));
}

void EarlyStopping::reset() {
  best_.reset();
  misses_ = 0;
}

std::string EarlyStopping::state() const {
  Json state = {{"misses", misses_}};
  if (best_) state["best"] = exact_number(*best_);
  return state.dump();
}

void EarlyStopping::load_state(const std::string& state) {
  const Json saved = Json::parse(state);
  saved.at("misses").get_to(misses_);
  best_.reset();
  if (saved.contains("best")) best_ = exact_number_of(saved.at("best"));
}

StopAtTarget::StopAtTarget(std::string monitor, double target, int64_t patience)
    : Callback({.on = stage_of(monitor)}),
      monitor_(std::move(monitor)),
      target_(target),
      patience_(patience) {
  if (patience < 1) throw ConfigError("train", fmt::format("patience must be at least 1: {}", patience));
}

void StopAtTarget::run(Trainer& trainer) {
  reached_ = trainer.metric(monitor_) >= target_ ? reached_ + 1 : 0;
  if (reached_ < patience_) return;
  trainer.stop_training(fmt::format("{} was at least {} {} times in a row", monitor_, target_, reached_));
}

void StopAtTarget::reset() { reached_ = 0; }

std::string StopAtTarget::state() const { return Json{{"reached", reached_}}.dump(); }

void StopAtTarget::load_state(const std::string& state) { Json::parse(state).at("reached").get_to(reached_); }

GradientMonitoring::GradientMonitoring(int64_t called_every, bool histograms)
    : Callback({.on = Stage::kTrainBatchEnd, .called_every = called_every}), histograms_(histograms) {}

void GradientMonitoring::run(Trainer& trainer) {
  const int64_t step = trainer.result().step;
  for (const GradientStatistics& gradient : trainer.gradient_statistics(histograms_)) {
    const std::string prefix = "gradients/" + gradient.name;
    const std::string names[] = {prefix + "/mean", prefix + "/std", prefix + "/max", prefix + "/min"};
    const Scalar scalars[] = {{names[0], gradient.mean},
                              {names[1], gradient.deviation},
                              {names[2], gradient.greatest},
                              {names[3], gradient.least}};
    trainer.trackers().write_scalars(scalars, step);
    if (!histograms_) continue;
    const at::Tensor& values = gradient.values;
    trainer.trackers().write_histogram(
        prefix, Histogram::of({values.const_data_ptr<double>(), static_cast<size_t>(values.numel())}), step);
  }
}

}  // namespace lockstep
