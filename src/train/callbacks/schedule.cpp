#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>

#include <lockstep/json.h>

#include "base/log.h"

namespace lockstep {

ScheduleLearningRate::ScheduleLearningRate(LearningRateSchedule schedule, Per per)
    : Callback({.on = per == Per::kEpoch ? Stage::kTrainEpochStart : Stage::kTrainBatchStart}),
      schedule_(std::move(schedule)),
      per_(per) {}

ScheduleLearningRate::~ScheduleLearningRate() = default;

void ScheduleLearningRate::run(Trainer& trainer) {
  // The rates that a group starts with stay those of the first training: a second one
  // begins its schedule anew.
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

}  // namespace lockstep
