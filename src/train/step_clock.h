#pragma once

#include <array>
#include <chrono>

#include "base/progress.h"

namespace lockstep::train {

// Splits the time of training into its phases, and tells them to whoever watches the
// process. On the CPU this is where the time goes; on a GPU, which works behind, where
// the host's does. Entering a phase costs one reading of the clock.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  void enter(base::Phase phase) {
    const Clock::time_point now = Clock::now();
    spent_[static_cast<size_t>(phase_)] += now - since_;
    since_ = now;
    phase_ = phase;
    base::Progress::of_process().set_phase(phase);
  }

  // Since the last call of this function.
  struct Split {
    double data_s = 0;
    double forward_s = 0;
    double backward_s = 0;
    double optimizer_s = 0;
  };
  Split take() {
    enter(phase_);
    const auto seconds = [this](base::Phase phase) {
      return std::chrono::duration<double>(spent_[static_cast<size_t>(phase)]).count();
    };
    const Split split{seconds(base::Phase::kData), seconds(base::Phase::kForward),
                      seconds(base::Phase::kBackward), seconds(base::Phase::kOptimizer)};
    spent_.fill({});
    return split;
  }

 private:
  std::array<Clock::duration, 7> spent_{};
  Clock::time_point since_ = Clock::now();
  base::Phase phase_ = base::Phase::kRunning;
};

}  // namespace lockstep::train
