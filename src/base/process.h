#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
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
  // Standard output and error of the child; -1: those of the parent.
  int stdout_fd = -1;
  int stderr_fd = -1;
  // The CPUs that the child may run on; empty: those of the parent.
  std::vector<int> cpus;
  // The child's limit of open files; nullopt: the parent's.
  std::optional<rlimit> open_files;
  // Called in the parent after fork and before the child executes the program, with the child's pid,
  // which is also its process group.
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

// A child process that leads its own process group. When it ends, the rest of its group is killed.
// The kernel kills the child when the thread that started it ends, for whatever reason: start children
// from a thread that outlives them.
class ChildProcess {
 public:
  // Forks and executes. ConfigError: the program cannot be executed.
  static ChildProcess start(const ProcessOptions& options);
  // The same without waiting for execve(2), which can block on the program's file system; call
  // confirm_exec() afterwards. ConfigError: fork failed.
  static ChildProcess begin(const ProcessOptions& options);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        program_(std::move(other.program_)),
        pidfd_(std::move(other.pidfd_)),
        exec_fd_(std::move(other.exec_fd_)),
        reaped_(other.reaped_),
        exit_state_(other.exit_state_) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills a running child with its process group and reaps it. Gives up after some seconds if the
  // kernel does not end the child.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Becomes readable once execve(2) has succeeded or failed; -1 after confirm_exec().
  int exec_fd() const { return exec_fd_.get(); }
  // Blocks until then. ConfigError: the program could not be executed.
  void confirm_exec();
  // Becomes readable once the process has ended; for poll(2). -1: the kernel has no pidfd.
  int exit_fd() const { return pidfd_.get(); }
  // Sends a signal to the child's process group. No-op once the child is reaped or end_by() gave up.
  void send_signal(int signal) const;
  // Sends a signal to the child alone, not to its group.
  void notify(int signal) const;
  // Reaps without blocking; true once the child has ended.
  bool poll_exit();
  // Kills the child with its group and reaps it. False: it has not ended by the deadline (it usually
  // waits for a disk) and is no longer watched.
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
  UniqueFd exec_fd_;  // the errno of a failed start, or the end of the stream after execve(2)
  bool reaped_ = false;
  ExitState exit_state_;
};

// A process or a thread, as its folder in /proc shows it.
struct ProcessState {
  char state = '?';         // 'R', 'S', 'D', 'Z', ...
  uint64_t start_time = 0;  // in clock ticks since boot; with it a pid is unique
};
// folder: "/proc/PID" or "/proc/PID/task/TID". nullopt: there is no such process.
std::optional<ProcessState> process_state(const std::filesystem::path& folder);

// The path and the arguments of the running program, for starting it again.
std::string own_executable();
std::vector<std::string> own_arguments();

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

// Both ends are closed on exec. ConfigError: no descriptors are left.
Pipe make_pipe();

// The executable that a shell with this environment's PATH would run; nullopt: none.
std::optional<std::string> find_program(std::string_view name, const Environment& environment);

struct ProgramResult {
  ExitState state;
  std::string output;  // standard output
  std::string errors;  // standard error
};

// Runs a program to its end and returns its output. Blocks. nullopt: it did not end in time and was
// killed. ConfigError: it cannot be executed. options.stdout_fd and stderr_fd are ignored.
std::optional<ProgramResult> run_program(ProcessOptions options, std::chrono::milliseconds timeout);

// Starts a thread that blocks all signals, so that the process's signals are delivered to the threads
// that expect them.
inline std::thread start_without_signals(std::function<void()> run) {
  sigset_t all, previous;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread thread(std::move(run));
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  return thread;
}

}  // namespace lockstep::base
