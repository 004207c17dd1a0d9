#pragma once

#include <lockstep/callback.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "recipes/epoch_steps.h"

namespace lockstep::recipes {

// Time spent training, without evaluation, and images trained on in it, over a whole run:
// kept in checkpoints, those in the middle of an epoch too, so that a run that goes on adds
// to what it had. What was trained after the checkpoint is trained again and counts once.
//
// By the end of an epoch all ranks have met and the device has finished, so that the time
// is that of the slowest.
class TrainingTime : public Callback {
 public:
  TrainingTime() : Callback({.on = Stage::kTrainEpochEnd}) {}

  // At the start of an epoch, or where it goes on; `steps` counts it, and must live until it
  // ends.
  void begin(const EpochSteps& steps);

  // Of the last epoch, with what of it was trained before the run went on.
  double epoch_seconds() const { return epoch_.seconds; }
  double epoch_images_per_s() const { return static_cast<double>(epoch_.images) / epoch_.seconds; }
  double seconds() const { return total_.seconds; }
  // 0 where nothing was trained.
  double images_per_s() const {
    return total_.seconds > 0 ? static_cast<double>(total_.images) / total_.seconds : 0;
  }

  std::string name() const override { return "training_time"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override;

 protected:
  void run(Trainer& trainer) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Part {
    double seconds = 0;
    int64_t images = 0;

    Part& operator+=(const Part& other);
  };
  // Of the running epoch so far; nothing between two epochs.
  Part running() const;

  const EpochSteps* steps_ = nullptr;  // while an epoch runs
  Clock::time_point start_ = Clock::now();
  Part before_;  // of the running epoch, before this process
  Part epoch_;   // the last one
  Part total_;   // of epochs that have ended
};

}  // namespace lockstep::recipes
