#include "recipes/training_time.h"

#include <nlohmann/json.hpp>

namespace lockstep::recipes {

void TrainingTime::begin(const EpochSteps& steps) {
  steps_ = &steps;
  start_ = Clock::now();
}

void TrainingTime::run(Trainer& trainer) {
  epoch_seconds_ = std::chrono::duration<double>(Clock::now() - start_).count();
  epoch_images_ = steps_->samples_taken();
  seconds_ += epoch_seconds_;
  images_ += epoch_images_;
}

std::string TrainingTime::state() const {
  return nlohmann::json{{"seconds", seconds_}, {"images", images_}}.dump();
}

void TrainingTime::load_state(const std::string& text) {
  const nlohmann::json state = nlohmann::json::parse(text);
  seconds_ = state.at("seconds");
  images_ = state.at("images");
}

void TrainingTime::reset() {
  seconds_ = 0;
  images_ = 0;
}

}  // namespace lockstep::recipes
