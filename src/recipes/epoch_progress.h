#pragma once

#include <lockstep/callbacks.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {
class Loader;
class Trainer;
}  // namespace lockstep

namespace lockstep::recipes {

// Counts the steps of the running epoch for printed lines, wherever training began: a run
// that goes on in the middle of an epoch does not count it from its start.
class EpochSteps {
 public:
  // `loader` is the whole one that fit() gets, `batch_size` that of each rank.
  EpochSteps(const Trainer& trainer, const Loader& loader, int64_t batch_size);

  // At the start of an epoch.
  void begin(const Trainer& trainer);
  // At the end of a step: its place in the epoch, from 0.
  int64_t take() { return next_++; }

  // Of each rank, in a pass over all data.
  int64_t batches() const { return batches_; }
  // Samples of all ranks in the steps since begin(), where all batches are full.
  int64_t samples_taken() const;

 private:
  const int64_t accumulate_;
  const int64_t samples_a_batch_;  // over all ranks
  int64_t batches_;
  int64_t epoch_batches_;  // what max_batches leaves of them
  int64_t first_ = 0;
  int64_t next_ = 0;
};

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
