#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>

#include <lockstep/json.h>

namespace lockstep {
namespace {

// Where a metric is new.
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

void EarlyStopping::load_state(const std::string& text) {
  const Json state = Json::parse(text);
  state.at("misses").get_to(misses_);
  best_.reset();
  if (state.contains("best")) best_ = exact_number_of(state.at("best"));
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

}  // namespace lockstep
