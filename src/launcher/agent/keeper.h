#pragma once

#include <sys/types.h>

#include <chrono>

#include <optional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {

// Kills every process whose environment has a variable that begins with `entry`
// ("NAME=value..."), and those that they start meanwhile. This finds processes that a worker left
// behind in another session, where signals to its process group do not reach them. It does not
// find processes of other users or without that variable. Blocks for milliseconds. killed:
// processes that already got SIGKILL and are not examined; reading the environment of one that
// hangs in the kernel can hang too.
void kill_leftovers(const std::string& entry, const std::set<pid_t>& killed = {});

// A process beside the launcher that kills the workers when the launcher cannot: the launcher was
// killed with SIGKILL, or it is paused (SIGSTOP, an overloaded machine) longer than the other
// nodes wait for it. It kills whole process groups, and what workers started in other sessions.
class Keeper {
 public:
  // Forks without exec. The child keeps only the standard descriptors of this process, and takes
  // no lock that another thread could have held at the fork except malloc's, which glibc handles.
  // Throws ConfigError if the fork fails.
  Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  // Kills what is still guarded, as if the launcher had died, and waits until that is done.
  ~Keeper();

  // New workers follow: a lease that has expired does not affect them. mark: the entry of their
  // environment for kill_leftovers().
  void begin(const std::string& mark);
  // Guards a worker's process group; called before the worker runs. release(): the group has
  // ended. If the lease has expired since begin(), the group is killed at once.
  void guard(pid_t group);
  void release(pid_t group);
  // Everything guarded is killed unless this is called again within the lease. A launcher that
  // never calls it has no such limit. From any thread, like end().
  void renew(std::chrono::milliseconds lease);
  // Kills everything guarded now, and everything guarded later at once.
  void end();
  // For how long the lease was not renewed, if it has expired since begin().
  std::optional<std::chrono::steady_clock::duration> lapse() const;

 private:
  using Clock = std::chrono::steady_clock;

  void send(char what, int64_t value, const std::string& text = "") const LOCKSTEP_REQUIRES(mutex_);

  base::UniqueFd pipe_;
  pid_t pid_ = -1;
  mutable base::Mutex mutex_;  // also serialises the messages in the pipe
  std::chrono::milliseconds lease_ LOCKSTEP_GUARDED_BY(mutex_){0};
  std::optional<Clock::time_point> last_renewal_ LOCKSTEP_GUARDED_BY(mutex_);
  // The longest time between renewals since begin().
  Clock::duration longest_silence_ LOCKSTEP_GUARDED_BY(mutex_){0};
};

}  // namespace lockstep::launcher
