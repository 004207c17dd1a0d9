#pragma once

#include <cstdint>

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

}  // namespace lockstep::recipes
