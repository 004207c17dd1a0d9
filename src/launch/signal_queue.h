#pragma once

#include <signal.h>

#include <optional>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::launcher {

// Takes signals as data. While it lives they are blocked in this thread and wait to
// be read; afterwards they have their usual effect again. A signal that this process
// ignores (nohup) stays ignored.
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

// What ends a job: INT, TERM, HUP, QUIT. What is only passed on: USR1, USR2.
const std::vector<int>& stop_signals();
const std::vector<int>& default_notify_signals();

// For a process that has its exit status and is about to end with it: SIGTERM, also one
// that waits already, changes the status no more. srun sends it to all other tasks as soon
// as the first one has ended, and shows the highest status of all.
void keep_status_despite_sigterm();

}  // namespace lockstep::launcher
