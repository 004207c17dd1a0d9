#pragma once

#include <lockstep/callback.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "recipes/epoch_steps.h"

namespace lockstep::recipes {

// Time spent training, without evaluation, and images trained on in it, over a whole run:
// kept in checkpoints, so that a run that goes on adds to what it had.
//
// By the end of an epoch all ranks have met and the device has finished, so that the time
// is that of the slowest.
class TrainingTime : public Callback {
 public:
  TrainingTime() : Callback({.on = Stage::kTrainEpochEnd}) {}

  // At the start of an epoch; `steps` counts it, and must live until it ends.
  void begin(const EpochSteps& steps);

  double epoch_seconds() const { return epoch_seconds_; }
  double epoch_images_per_s() const { return static_cast<double>(epoch_images_) / epoch_seconds_; }
  double seconds() const { return seconds_; }
  // 0 where nothing was trained.
  double images_per_s() const { return seconds_ > 0 ? static_cast<double>(images_) / seconds_ : 0; }

  std::string name() const override { return "training_time"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override;

 protected:
  void run(Trainer& trainer) override;

 private:
  using Clock = std::chrono::steady_clock;

  const EpochSteps* steps_ = nullptr;
  Clock::time_point start_ = Clock::now();
  double epoch_seconds_ = 0;
  int64_t epoch_images_ = 0;
  double seconds_ = 0;
  int64_t images_ = 0;
};

}  // namespace lockstep::recipes
