#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class World;

struct PreemptionOptions {
  // What asks this program to save and leave. Empty: SIGTERM, SIGUSR1 and SIGUSR2.
  std::vector<int> signals;
  // How long before the end of the job it is time to leave.
  std::chrono::seconds margin{120};
  // The job's time limit, from now on, where Slurm does not tell it.
  std::optional<std::chrono::seconds> time_limit;
  // About how often the ranks ask each other.
  std::chrono::milliseconds period{1000};
};

// Agreement of all ranks to stop at the same step: because one of them got a signal
// (Slurm's --signal, a preemption, `lockstep run` passing one on), or because the time
// limit comes near.
//
//   Preemption preemption(world);
//   for (...) {
//     train_step();
//     if (preemption.requested()) {
//       save_checkpoint();
//       preemption.leave();
//     }
//   }
//
// While it lives the signals do not end the process. Made and used by one thread.
class Preemption {
 public:
  explicit Preemption(const World& world, PreemptionOptions options = {});
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;
  ~Preemption();

  // Whether all ranks stop here. Collective: every rank calls it after every step. It
  // asks the others only about once a period, so it costs next to nothing. Once true
  // it stays true.
  bool requested();
  // Why: "rank 3 got SIGUSR1". REQUIRES: requested() was true.
  const std::string& reason() const;
  // The signal that asked; 0: the time limit. REQUIRES: requested() was true.
  int signal() const;
  // Waits until all ranks have come here, so that nobody is ended while it saves, and
  // throws Preempted, which launch() turns into the exit status kExitPreempted: the
  // launcher does not restart the job, a batch script puts it into the queue again.
  [[noreturn]] void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
