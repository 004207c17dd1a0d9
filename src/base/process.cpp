#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include "base/pipe.h"

namespace lockstep::base {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> to_entries(const Environment& environment) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment.values()) entries.push_back(name + "=" + value);
  return entries;
}

// Between fork and exec only async-signal-safe calls are allowed, so everything
// that allocates is prepared before.
struct ExecPlan {
  const char* program;
  char** arguments;
  char** environment;
  const int* inherited_fds;
  size_t num_inherited_fds;
  int stdout_fd;
  int stderr_fd;
  int error_fd;
  int go_fd;  // the child reads one byte from it before it goes on; -1: it need not
  pid_t parent;
  const cpu_set_t* cpus;
  size_t cpus_bytes;
  const rlimit* open_files;  // nullptr: those of the parent
};

[[noreturn]] void report_and_exit(const ExecPlan& plan) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(plan.error_fd, &error, sizeof error);
  ::_exit(127);
}

[[noreturn]] void become(const ExecPlan& plan) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) report_and_exit(plan);
  // The parent may have died before the request above took effect.
  if (::getppid() != plan.parent) ::_exit(127);
  if (char go = 0; plan.go_fd >= 0 && ::read(plan.go_fd, &go, 1) != 1) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Ignored signals stay ignored over exec; a program expects to die of a closed pipe.
  ::signal(SIGPIPE, SIG_DFL);
  if (plan.cpus_bytes > 0 && ::sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0) report_and_exit(plan);
  if (plan.open_files != nullptr) ::setrlimit(RLIMIT_NOFILE, plan.open_files);
  for (size_t i = 0; i < plan.num_inherited_fds; ++i) ::fcntl(plan.inherited_fds[i], F_SETFD, 0);
  if (plan.stdout_fd >= 0 && ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0) report_and_exit(plan);
  if (plan.stderr_fd >= 0 && ::dup2(plan.stderr_fd, STDERR_FILENO) < 0) report_and_exit(plan);
  ::execve(plan.program, plan.arguments, plan.environment);
  report_and_exit(plan);
}

// A mask of any size: the type cpu_set_t itself ends at 1024 CPUs.
std::vector<cpu_set_t> mask_of(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const int highest = *std::max_element(cpus.begin(), cpus.end());
  std::vector<cpu_set_t> mask(static_cast<size_t>(highest) / CPU_SETSIZE + 1);
  const size_t bytes = mask.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, mask.data());
  for (const int cpu : cpus) CPU_SET_S(cpu, bytes, mask.data());
  return mask;
}

// A process that was started with SIGCHLD ignored would never learn how a child ended.
void keep_exit_states() {
  struct sigaction current {};
  if (::sigaction(SIGCHLD, nullptr, &current) == 0 && current.sa_handler == SIG_IGN) {
    ::signal(SIGCHLD, SIG_DFL);
  }
}

// What a killed process is given to end in; the kernel itself has no limit.
constexpr std::chrono::seconds kEndTimeout{10};
constexpr std::chrono::milliseconds kReapPause{20};

bool wait_readable(int fd, std::chrono::steady_clock::duration limit) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count())) > 0;
}

// 0 when the child became the program, else the errno of what failed in it.
int read_exec_error(int fd) {
  int error = 0;
  ssize_t got;
  do {
    got = ::read(fd, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

}  // namespace

std::string ExitState::to_string() const {
  if (!signaled) return fmt::format("exit code {}", code);
  const char* name = ::sigabbrev_np(code);
  return fmt::format("signal {} (SIG{})", code, name != nullptr ? name : "?");
}

ChildProcess ChildProcess::start(const ProcessOptions& options) {
  ChildProcess child = begin(options);
  child.confirm_exec();
  return child;
}

ChildProcess ChildProcess::begin(const ProcessOptions& options) {
  keep_exit_states();
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> entries = to_entries(options.environment);
  std::vector<char*> argument_pointers = pointers_to(arguments);
  std::vector<char*> entry_pointers = pointers_to(entries);

  const std::vector<cpu_set_t> mask = mask_of(options.cpus);

  Pipe error = make_pipe();
  Pipe go;
  if (options.before_exec) go = make_pipe();
  const ExecPlan plan{options.program.c_str(),
                      argument_pointers.data(),
                      entry_pointers.data(),
                      options.inherited_fds.data(),
                      options.inherited_fds.size(),
                      options.stdout_fd,
                      options.stderr_fd,
                      error.write_end.get(),
                      go.read_end.get(),
                      ::getpid(),
                      mask.data(),
                      mask.size() * sizeof(cpu_set_t),
                      options.open_files ? &*options.open_files : nullptr};
  const pid_t pid = ::fork();
  if (pid < 0) throw ConfigError("process", fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid == 0) {
    // Its own copy would keep it waiting for a parent that is gone.
    go.write_end.reset();
    become(plan);
  }

  // Also here: whoever comes first, the group exists before anyone signals it.
  ::setpgid(pid, pid);
  error.write_end.reset();
  if (options.before_exec) {
    options.before_exec(pid);
    [[maybe_unused]] const ssize_t written = ::write(go.write_end.get(), "g", 1);
  }
  return {pid, options.program, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))),
          std::move(error.read_end)};
}

void ChildProcess::confirm_exec() {
  if (!exec_fd_) return;
  const int number = read_exec_error(exec_fd_.get());
  exec_fd_.reset();
  if (number != 0) {
    throw ConfigError("process", fmt::format("cannot execute '{}': {}", program_, std::strerror(number)));
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) end_by(std::chrono::steady_clock::now() + kEndTimeout);
}

bool ChildProcess::end_by(std::chrono::steady_clock::time_point deadline) {
  while (true) {
    send_signal(SIGKILL);
    if (poll_exit()) return true;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    // One that somebody traces may have ended for the descriptor, and cannot be reaped yet: the
    // pause is what keeps this from spinning.
    const auto pause = std::min<std::chrono::steady_clock::duration>(left, kReapPause);
    if (wait_readable(pidfd_.get(), pause)) std::this_thread::sleep_for(pause / 10);
  }
  pid_ = -1;
  return false;
}

void ChildProcess::send_signal(int signal) const {
  if (!reaped_ && pid_ > 0) ::kill(-pid_, signal);
}

void ChildProcess::notify(int signal) const {
  if (!reaped_ && pid_ > 0) ::kill(pid_, signal);
}

bool ChildProcess::poll_exit() {
  if (reaped_) return true;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD) {
    // Reaped by somebody else, who knows how it ended and did not say.
    reaped_ = true;
    exit_state_.code = 255;
    return true;
  }
  if (info.si_pid != pid_) return false;
  // While the child is not reaped its group's number cannot belong to others: the
  // moment to end what it has left behind.
  ::kill(-pid_, SIGKILL);
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  reaped_ = true;
  exit_state_.signaled = info.si_code != CLD_EXITED;
  exit_state_.code = info.si_status;
  return true;
}

std::string own_executable() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == sizeof path) {
    throw ConfigError("process", fmt::format("cannot read /proc/self/exe: {}", std::strerror(errno)));
  }
  std::string result(path, static_cast<size_t>(length));
  // What the kernel appends when the file was replaced while it runs, by a build for
  // example: the new one is what to start.
  constexpr std::string_view kDeleted = " (deleted)";
  if (result.ends_with(kDeleted)) result.resize(result.size() - kDeleted.size());
  return result;
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    arguments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

}  // namespace lockstep::base
