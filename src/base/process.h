#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
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
  // The child's limit of open files; nullopt: the parent's.
  std::optional<rlimit> open_files;
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
  // The same without waiting for execve(2), which takes as long as the program's file system:
  // confirm_exec() is to follow. Throws ConfigError when there can be no child.
  static ChildProcess begin(const ProcessOptions& options);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        program_(std::move(other.program_)),
        pidfd_(std::move(other.pidfd_)),
        exec_fd_(std::move(other.exec_fd_)),
        reaped_(other.reaped_),
        exit_state_(other.exit_state_) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  // A child that still runs is killed with its process group, and reaped, unless the kernel does
  // not let it end within some seconds.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Readable once it is known whether the program could be executed; -1 after confirm_exec().
  int exec_fd() const { return exec_fd_.get(); }
  // Waits until that is known. Throws ConfigError when the program could not be executed.
  void confirm_exec();
  // Readable once the process has ended; for poll(2).
  int exit_fd() const { return pidfd_.get(); }
  // Sends a signal to the child's process group. No-op once it is reaped or left to itself.
  void send_signal(int signal) const;
  // Sends a signal to the child alone, not to what it has started.
  void notify(int signal) const;
  // Reaps without blocking; true once the child has ended.
  bool poll_exit();
  // Kills the child with its group and reaps it. False: it has not ended by then, it waits for
  // a disk as a rule, and is left to whoever reaps orphans.
  bool end_by(std::chrono::steady_clock::time_point deadline);
  // Whether poll_exit() has returned true.
  bool ended() const { return reaped_; }
  // REQUIRES: ended().
  const ExitState& exit_state() const { return exit_state_; }

 private:
  ChildProcess(pid_t pid, std::string program, UniqueFd pidfd, UniqueFd exec_fd)
      : pid_(pid), program_(std::move(program)), pidfd_(std::move(pidfd)), exec_fd_(std::move(exec_fd)) {}

  pid_t pid_ = -1;
  std::string program_;
  UniqueFd pidfd_;
  UniqueFd exec_fd_;  // ends when the child becomes the program; before, what went wrong
  bool reaped_ = false;
  ExitState exit_state_;
};

// The path and the arguments of the running program, for starting it once more.
std::string own_executable();
std::vector<std::string> own_arguments();

}  // namespace lockstep::base
