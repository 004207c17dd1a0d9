#pragma once

#include <signal.h>

#include <optional>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::launcher {

// Reads signals as data. While it lives they are blocked in this thread and wait to be read;
// afterwards they have their usual effect again. A signal that this process ignores (nohup) stays
// ignored.
class SignalQueue {
 public:
  explicit SignalQueue(const std::vector<int>& signals);
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  // Readable while a signal waits; for poll(2).
  int fd() const { return fd_.get(); }
  // The next signal, without blocking.
  std::optional<int> next();

 private:
  sigset_t previous_;
  base::UniqueFd fd_;
};

// The signals that end a job: INT, TERM, HUP, QUIT; and those that are only passed to the
// workers: USR1, USR2.
const std::vector<int>& stop_signals();
const std::vector<int>& default_notify_signals();

// For a process that has its exit status and is about to end with it: a SIGTERM, even a pending
// one, no longer changes the status. srun sends SIGTERM to all other tasks as soon as the first
// one has ended, and returns the highest status of all.
void keep_status_despite_sigterm();

}  // namespace lockstep::launcher
