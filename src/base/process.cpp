#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/file.h"

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

// Only async-signal-safe calls are allowed between fork and exec, so everything that allocates memory is
// prepared here before.
struct ExecPlan {
  const char* program;
  char** arguments;
  char** environment;
  const int* inherited_fds;
  size_t num_inherited_fds;
  int stdout_fd;
  int stderr_fd;
  int error_fd;
  int go_fd;  // the child waits for one byte from it; -1: it does not wait
  pid_t parent;
  const cpu_set_t* cpus;
  size_t cpus_bytes;
  const rlimit* open_files;  // nullptr: the limits of the parent
};

[[noreturn]] void report_and_exit(const ExecPlan& plan) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(plan.error_fd, &error, sizeof error);
  ::_exit(127);
}

[[noreturn]] void run_child(const ExecPlan& plan) {
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) report_and_exit(plan);
  // The parent may have died before the request above took effect.
  if (::getppid() != plan.parent) ::_exit(127);
  if (char go = 0; plan.go_fd >= 0 && ::read(plan.go_fd, &go, 1) != 1) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Ignored signals stay ignored after exec; a program expects SIGPIPE to end it.
  ::signal(SIGPIPE, SIG_DFL);
  if (plan.cpus_bytes > 0 && ::sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0) report_and_exit(plan);
  if (plan.open_files != nullptr) ::setrlimit(RLIMIT_NOFILE, plan.open_files);
  for (size_t i = 0; i < plan.num_inherited_fds; ++i) ::fcntl(plan.inherited_fds[i], F_SETFD, 0);
  if (plan.stdout_fd >= 0 && ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0) report_and_exit(plan);
  if (plan.stderr_fd >= 0 && ::dup2(plan.stderr_fd, STDERR_FILENO) < 0) report_and_exit(plan);
  ::execve(plan.program, plan.arguments, plan.environment);
  report_and_exit(plan);
}

// Several cpu_set_t, because one holds 1024 CPUs at most.
std::vector<cpu_set_t> mask_of(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const int highest = *std::max_element(cpus.begin(), cpus.end());
  std::vector<cpu_set_t> mask(static_cast<size_t>(highest) / CPU_SETSIZE + 1);
  const size_t bytes = mask.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, mask.data());
  for (const int cpu : cpus) CPU_SET_S(cpu, bytes, mask.data());
  return mask;
}

// With SIGCHLD ignored, which a process inherits, the kernel discards the exit states of children.
void keep_exit_states() {
  struct sigaction current {};
  if (::sigaction(SIGCHLD, nullptr, &current) == 0 && current.sa_handler == SIG_IGN) {
    ::signal(SIGCHLD, SIG_DFL);
  }
}

// How long a killed process may take to end; the kernel sets no limit.
constexpr std::chrono::seconds kEndTimeout{10};
constexpr std::chrono::milliseconds kReapPause{20};

bool wait_readable(int fd, std::chrono::steady_clock::duration limit) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count())) > 0;
}

// 0 if the child executed the program, else the errno of the call that failed in the child.
int read_exec_error(int fd) {
  int error = 0;
  const ssize_t got = retry_interrupted([&] { return ::read(fd, &error, sizeof error); });
  return got == sizeof error ? error : 0;
}

using Clock = std::chrono::steady_clock;

// Appends what is available; false at the end of the stream.
bool read_some(int fd, std::string& text) {
  char buffer[4096];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EINTR;
  text.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

// Polls even after the deadline, to see what has happened until then.
void wait_for(pollfd* fds, nfds_t count, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  ::poll(fds, count, static_cast<int>(std::max<int64_t>(left, 0)));
}

// How often to check for the end of a child on kernels without pidfd.
constexpr std::chrono::milliseconds kPollPeriod{10};

bool read_until(Clock::time_point deadline, ChildProcess& child, std::array<Pipe, 2>& pipes,
                std::array<std::string*, 2> texts) {
  std::array<pollfd, 3> fds{{{pipes[0].read_end.get(), POLLIN, 0},
                             {pipes[1].read_end.get(), POLLIN, 0},
                             {child.exit_fd(), POLLIN, 0}}};
  while (true) {
    // Checked before the streams are read, so that the output of an ended process is complete.
    bool has_ended = false;
    if (child.exit_fd() < 0) {
      has_ended = child.poll_exit();
      const auto next_look = Clock::now() + (has_ended ? std::chrono::milliseconds(0) : kPollPeriod);
      wait_for(fds.data(), fds.size(), std::min(deadline, next_look));
    } else {
      wait_for(fds.data(), fds.size(), deadline);
      has_ended = fds[2].revents != 0;
    }
    bool read = false;
    for (size_t i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      read = true;
      if (!read_some(fds[i].fd, *texts[i])) fds[i].fd = -1;
    }
    // A grandchild may keep the streams open, so stop when the process itself has ended and nothing is
    // left to read.
    if (!read && has_ended) return true;
    if (!read && Clock::now() >= deadline) return false;
  }
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
    // With this end open, the child would wait forever for a parent that died.
    go.write_end.reset();
    run_child(plan);
  }

  // Both parent and child set the group, so that it exists before anyone signals it.
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
    // The descriptor of a traced child can be readable before the child can be reaped: sleep, so that
    // this loop does not spin.
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
    // Other code has reaped the child, so its exit state is lost.
    reaped_ = true;
    exit_state_.code = 255;
    return true;
  }
  if (info.si_pid != pid_) return false;
  // Until the child is reaped, its group number cannot be reused: kill the rest of its group now.
  ::kill(-pid_, SIGKILL);
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  reaped_ = true;
  exit_state_.signaled = info.si_code != CLD_EXITED;
  exit_state_.code = info.si_status;
  return true;
}

std::optional<ProcessState> process_state(const std::filesystem::path& folder) {
  const std::optional<std::string> text = read_whole_file(folder / "stat");
  // "PID (NAME) STATE ...": the name may hold anything, so fields are counted from its end. The state
  // is field 3, the start time field 22.
  const size_t name_end = text ? text->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text->substr(name_end + 1));
  ProcessState process;
  fields >> process.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> process.start_time)) return std::nullopt;
  return process;
}

std::string own_executable() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == sizeof path) {
    throw ConfigError("process", fmt::format("cannot read /proc/self/exe: {}", std::strerror(errno)));
  }
  std::string result(path, static_cast<size_t>(length));
  // The kernel appends this if the file was replaced while it runs, for example by a build. The new
  // file is the one to start.
  constexpr std::string_view kDeleted = " (deleted)";
  if (result.ends_with(kDeleted)) result.resize(result.size() - kDeleted.size());
  return result;
}

std::vector<std::string> own_arguments() {
  const std::string text = read_whole_file("/proc/self/cmdline").value_or("");
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    arguments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw ConfigError("process", fmt::format("cannot create a pipe: {}", std::strerror(errno)));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::optional<std::string> find_program(std::string_view name, const Environment& environment) {
  const std::string path = environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = end > begin ? path.substr(begin, end - begin) : ".";
    std::string candidate = fmt::format("{}/{}", folder, name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<ProgramResult> run_program(ProcessOptions options, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::array<Pipe, 2> pipes{make_pipe(), make_pipe()};
  options.stdout_fd = pipes[0].write_end.get();
  options.stderr_fd = pipes[1].write_end.get();
  ChildProcess child = ChildProcess::start(options);
  for (Pipe& pipe : pipes) pipe.write_end.reset();
  ProgramResult result;
  if (!read_until(deadline, child, pipes, {&result.output, &result.errors})) return std::nullopt;
  child.poll_exit();
  result.state = child.exit_state();
  return result;
}

}  // namespace lockstep::base
