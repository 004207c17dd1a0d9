#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::base {

// What a training step is doing.
enum class Phase : uint32_t { kStarting, kConnecting, kRunning, kData, kForward, kBackward, kOptimizer };

const char* to_string(Phase phase);

// A page of memory that a worker and its launcher share. Fields change one by one, so a reader may see a
// step and a collective that do not belong together. That is good enough to find which rank waits for
// which.
struct ProgressPage {
  static constexpr uint32_t kMagic = 0x4c535031;

  std::atomic<uint32_t> magic{0};  // set by a worker that reports its progress
  std::atomic<uint32_t> phase{0};
  std::atomic<int64_t> step{-1};
  std::atomic<uint64_t> collectives_started{0};
  std::atomic<uint64_t> collectives_finished{0};
  std::atomic<uint64_t> operation[2]{};  // name of the last collective, up to 16 bytes
  std::atomic<int64_t> changed_ns{0};    // CLOCK_MONOTONIC
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// Reports what this process is doing to its launcher. Without a launcher the calls have no effect. Every
// call is a few stores. Thread-safe. Never fails.
class Progress {
 public:
  // One per process, because a process has one page: the one of LOCKSTEP_PROGRESS_FD.
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
  // ConfigError: no memory or no descriptor is left.
  ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;
  ~ProgressWatch();

  // The worker inherits this descriptor and finds its number in LOCKSTEP_PROGRESS_FD.
  int fd() const { return fd_.get(); }

  struct Snapshot {
    bool reports = false;  // the worker reports its progress
    Phase phase = Phase::kStarting;
    int64_t step = -1;
    uint64_t collectives_started = 0;
    uint64_t collectives_finished = 0;
    std::string operation;
    int64_t idle_ns = 0;  // since the last change

    bool waits() const { return reports && collectives_started > collectives_finished; }
  };
  Snapshot look() const;

 private:
  UniqueFd fd_;
  ProgressPage* page_ = nullptr;
};

}  // namespace lockstep::base
