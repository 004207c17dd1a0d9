#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::base {

// Where a training step is.
enum class Phase : uint32_t { kStarting, kConnecting, kRunning, kData, kForward, kBackward, kOptimizer };

const char* to_string(Phase phase);

// A page that a worker and its launcher share. Fields change one by one: a reader may
// see a step and a collective that do not quite belong together, which is good enough
// to find who waits for whom.
struct ProgressPage {
  static constexpr uint32_t kMagic = 0x4c535031;

  std::atomic<uint32_t> magic{0};  // set by the worker that writes here
  std::atomic<uint32_t> phase{0};
  std::atomic<int64_t> step{-1};
  std::atomic<uint64_t> collectives_started{0};
  std::atomic<uint64_t> collectives_finished{0};
  std::atomic<uint64_t> operation[2]{};  // name of the last one started, 16 bytes
  std::atomic<int64_t> changed_ns{0};    // CLOCK_MONOTONIC
};

// What this process is doing, for the launcher that watches it. Without one, nothing is
// kept. Every call is a few stores; thread-safe; never fails.
class Progress {
 public:
  // One a process, since the page is: the one that LOCKSTEP_PROGRESS_FD hands over.
  static Progress& of_process();

  void set_step(int64_t step);
  void set_phase(Phase phase);
  void collective_started(std::string_view operation);
  void collective_finished();

 private:
  Progress();
  void changed();

  ProgressPage unwatched_;
  ProgressPage* page_ = &unwatched_;
};

// The launcher's side of one worker's page.
class ProgressWatch {
 public:
  // Throws ConfigError when there is no memory for it.
  ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;
  ~ProgressWatch();

  // For the worker: its number goes into LOCKSTEP_PROGRESS_FD.
  int fd() const { return fd_.get(); }

  struct Snapshot {
    bool told = false;  // the worker is one that writes here
    Phase phase = Phase::kStarting;
    int64_t step = -1;
    uint64_t collectives_started = 0;
    uint64_t collectives_finished = 0;
    std::string operation;
    int64_t idle_ns = 0;  // since the last change

    bool waits() const { return told && collectives_started > collectives_finished; }
  };
  Snapshot look() const;

 private:
  UniqueFd fd_;
  ProgressPage* page_ = nullptr;
};

}  // namespace lockstep::base
