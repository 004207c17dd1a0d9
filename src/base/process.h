#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/unique_fd.h"

namespace lockstep::base {

struct ProcessOptions {
  std::string program;                 // path of the executable
  std::vector<std::string> arguments;  // argv, argv[0] included
  Environment environment;             // the whole environment of the child
  // Descriptors that stay open in the child, under the same number.
  std::vector<int> inherited_fds;
  // Standard output and error of the child; -1: the parent's own.
  int stdout_fd = -1;
  int stderr_fd = -1;
  // The CPUs that the child may run on; empty: those of the parent.
  std::vector<int> cpus;
  // Called in the parent when the child exists, with its pid, which is its group's too,
  // and before it becomes the program.
  std::function<void(pid_t)> before_exec;
};

// How a process ended.
struct ExitState {
  bool signaled = false;
  int code = 0;  // exit code, or the signal's number

  bool success() const { return !signaled && code == 0; }
  // The shell's convention: the code, or 128 + signal.
  int status() const { return signaled ? 128 + code : code; }
  // "exit code 3" or "signal 9 (SIGKILL)".
  std::string to_string() const;
};

// A child in a process group of its own. When it ends, what is left of its group is
// killed. The kernel kills the child itself when the thread that started it ends,
// however that happens: start children from a thread that lives as long as they may.
class ChildProcess {
 public:
  // Forks and executes. Throws ConfigError when the program cannot be executed.
  static ChildProcess start(const ProcessOptions& options);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        pidfd_(std::move(other.pidfd_)),
        reaped_(other.reaped_),
        exit_state_(other.exit_state_) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  // A child that still runs is killed with its process group, and reaped.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Readable once the process has ended; for poll(2).
  int exit_fd() const { return pidfd_.get(); }
  // Sends a signal to the child's process group. No-op once it is reaped.
  void send_signal(int signal) const;
  // Sends a signal to the child alone, not to what it has started.
  void notify(int signal) const;
  // Reaps without blocking; true once the child has ended.
  bool poll_exit();
  // Whether poll_exit() has returned true.
  bool ended() const { return reaped_; }
  // REQUIRES: ended().
  const ExitState& exit_state() const { return exit_state_; }

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool reaped_ = false;
  ExitState exit_state_;
};

// The path and the arguments of the running program, for starting it once more.
std::string own_executable();
std::vector<std::string> own_arguments();

}  // namespace lockstep::base
