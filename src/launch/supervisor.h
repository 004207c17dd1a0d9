#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "base/process.h"

namespace lockstep::launcher {

struct SupervisorOptions {
  // After the first failure the others get this long to notice it themselves, say
  // so and end; then SIGTERM.
  std::chrono::milliseconds failure_grace{2000};
  // From SIGTERM to SIGKILL.
  std::chrono::milliseconds termination_grace{5000};
};

struct Failure {
  int worker = 0;  // index into the workers
  pid_t pid = 0;
  base::ExitState state;
};

struct SupervisorOutcome {
  std::optional<Failure> first_failure;
  // 0, the first failing worker's exit code or 128 + its signal; after a signal that asked
  // the supervisor to stop 128 + that, or kExitPreempted where a worker saved.
  int status = 0;
};

// Watches workers until all have ended. One failure ends all of them. INT, TERM,
// HUP and QUIT sent to this process are passed on and start the termination grace;
// USR1 and USR2 are passed on and change nothing else. Where the status is not 0 this
// process ignores SIGTERM afterwards: it is meant to end with that status.
//
// Blocks. Call it from the thread that started the workers, while no other thread
// of this process accepts these signals.
SupervisorOutcome supervise(std::vector<base::ChildProcess>& workers, const SupervisorOptions& options = {});

}  // namespace lockstep::launcher
