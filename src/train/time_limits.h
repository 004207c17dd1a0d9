#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace lockstep {
class Communicator;
}

namespace lockstep::train {

// Ends a training, and saves it, by time. Rank 0's clock decides; the ranks agree on its decision after the
// same step. They communicate about once a second, not after every step.
class TimeLimits {
 public:
  struct Options {
    double max_time_s = 0;    // 0: no limit
    double save_every_s = 0;  // 0: no saves by time
  };
  TimeLimits(const Communicator& group, const Options& options) : group_(group), options_(options) {}

  // Starts the clock of a training that has taken this time before a resume.
  void begin(double before_s);
  // Of the training, with the time before a resume, by this rank's clock.
  double trained_s() const;
  // A checkpoint was saved: the next one is due a period later.
  void saved() { last_save_ = Clock::now(); }

  struct Due {
    bool stop = false;
    bool save = false;
  };
  // Called after each step; all ranks get the same answer. Collective.
  Due after_step();

 private:
  using Clock = std::chrono::steady_clock;

  // Rank 0: what is due now, and the number of steps until the ranks ask again.
  int64_t decide() const;

  const Communicator& group_;
  const Options options_;
  double before_s_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_save_ = start_;
  Clock::time_point last_asked_ = start_;
  int64_t steps_ = 0;     // since the ranks asked
  int64_t interval_ = 1;  // steps between two questions; the same on all ranks
};

}  // namespace lockstep::train
