#pragma once

#include <chrono>

namespace lockstep::comm::shm {

// How to wait for a peer: pause a few microseconds, then let other threads run,
// then sleep, for longer the longer it takes. Never more than a sixteenth of the
// time waited so far is added to it, and there is nothing to wake up, so that
// publishing needs no system call.
class Waiter {
 public:
  using Clock = std::chrono::steady_clock;

  // `may_spin` is false when ranks outnumber the CPUs: the peer needs this one.
  explicit Waiter(bool may_spin) : may_spin_(may_spin) {}

  // Waits a moment. True about once a millisecond, when waiting is already long:
  // time to look whether the peers are well.
  bool pause();
  // Call when something happened: the next pause is a short one again.
  void reset();

  // Time since construction or the last call of reset, zero while it is too short
  // to have looked at the clock.
  Clock::duration waited() const { return waited_; }

 private:
  bool may_spin_;
  int spins_ = 0;
  Clock::time_point began_{};
  Clock::duration waited_{};
};

// Whether this process may use at least `count` CPUs.
bool cpus_suffice_for(int count);

}  // namespace lockstep::comm::shm
