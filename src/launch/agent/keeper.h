#pragma once

#include <sys/types.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::launcher {

// A process beside the launcher that ends the workers when the launcher cannot: it
// was killed with SIGKILL, or it does not run (SIGSTOP, a machine that stalls) longer
// than the others of the job wait for it. It kills whole process groups, and what
// workers have started in sessions of their own.
class Keeper {
 public:
  // Forks without executing anything: it holds no descriptor of this process but the
  // standard ones, and takes no lock that one of its threads could have held but malloc's,
  // which survives. Throws ConfigError when that is impossible.
  Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  // Kills what is still guarded, as if the launcher had died, and waits for the end.
  ~Keeper();

  // New workers follow: a lease that has run out does not concern them. mark: what their
  // environment holds, for kill_leftovers().
  void begin(const std::string& mark);
  // From before a worker runs to the moment its group is known to be gone. Where the
  // lease has run out since begin() it is killed at once.
  void guard(pid_t group);
  void release(pid_t group);
  // Unless this is called again within the lease, everything guarded is killed. A
  // launcher that never calls it has no such limit. From any thread, as end().
  void renew(std::chrono::milliseconds lease);
  // Kills everything guarded, now, and what is guarded later as soon as it is.
  void end();
  // How long nobody renewed the lease, where it has run out since begin().
  std::optional<std::chrono::steady_clock::duration> lapse() const;

 private:
  using Clock = std::chrono::steady_clock;

  void send(char what, int64_t value, const std::string& text = "") const;

  base::UniqueFd pipe_;
  pid_t pid_ = -1;
  mutable std::mutex mutex_;  // of all that follows, and of the order in the pipe
  std::chrono::milliseconds lease_{0};
  std::optional<Clock::time_point> last_renewal_;
  Clock::duration longest_silence_{0};  // between renewals since begin()
};

}  // namespace lockstep::launcher
