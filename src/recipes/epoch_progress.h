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

// Counts the steps of the running epoch for printed lines. A run that resumes in the middle of an epoch
// continues the count.
class EpochSteps {
 public:
  // `loader` is the one that fit() gets, `batch_size` is that of each rank.
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

// The training time of a whole run, without evaluation, and the number of images trained on. Both are
// saved in checkpoints, also in the middle of an epoch, and a resumed run adds to them. Steps after the
// checkpoint are trained again and count once.
//
// At the end of an epoch all ranks have synchronised and the device has finished, so the time is that of
// the slowest rank.
class TrainingTime : public Callback {
 public:
  TrainingTime() : Callback({.on = Stage::kTrainEpochEnd}) {}

  // Called at the start of an epoch, or at the step where it resumes. `steps` counts the epoch and must
  // outlive it.
  void begin(const EpochSteps& steps);

  // Of the last epoch, including the part before a resume.
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
