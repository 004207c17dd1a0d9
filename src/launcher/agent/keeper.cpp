#include "launcher/agent/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/folder.h"
#include "base/number.h"
#include "base/process.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {
namespace {

// Limits the wait for a process that cannot be killed now because it waits for a disk.
constexpr int kMaxRounds = 20;
constexpr std::chrono::milliseconds kPause{2};

// environment: entries separated by NUL bytes.
bool has_entry(std::string_view environment, std::string_view entry) {
  for (size_t at = environment.find(entry); at != std::string_view::npos;
       at = environment.find(entry, at + 1)) {
    if (at == 0 || environment[at - 1] == '\0') return true;
  }
  return false;
}

void read_environment(int proc, const char* pid, std::string& text) {
  text.clear();
  const base::UniqueFd fd(
      ::openat(proc, (std::string(pid) + "/environ").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::array<char, 1 << 14> bytes;
  ssize_t got = 0;
  while (fd && (got = ::read(fd.get(), bytes.data(), bytes.size())) > 0) {
    text.append(bytes.data(), static_cast<size_t>(got));
  }
}

// Returns how many processes it killed.
int kill_round(const std::string& entry, const std::set<pid_t>& killed) {
  const base::FolderStream folder(::opendir("/proc"));
  if (!folder) return 0;
  int count = 0;
  std::string environment;
  while (const dirent* item = ::readdir(folder.get())) {
    const std::optional<int64_t> pid = base::parse_integer(item->d_name);
    if (!pid || *pid == ::getpid() || killed.contains(static_cast<pid_t>(*pid))) continue;
    read_environment(::dirfd(folder.get()), item->d_name, environment);
    if (has_entry(environment, entry) && ::kill(static_cast<pid_t>(*pid), SIGKILL) == 0) ++count;
  }
  return count;
}

}  // namespace

void kill_leftovers(const std::string& entry, const std::set<pid_t>& killed) {
  for (int round = 0; round < kMaxRounds && kill_round(entry, killed) > 0; ++round) {
    std::this_thread::sleep_for(kPause);
  }
}

// --- Keeper ---

namespace {

using std::chrono::steady_clock;

struct Message {
  char what;      // b: begin, g: guard, r: release, l: lease, e: end
  int64_t value;  // of begin: the bytes of the mark, which follow
};

int wait_ms(const std::optional<steady_clock::time_point>& deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - steady_clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

void kill_all(const std::set<pid_t>& groups, const std::string& mark) {
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  if (!groups.empty() && !mark.empty()) kill_leftovers(mark, groups);
}

std::string read_text(int fd, int64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  for (size_t at = 0; at < text.size();) {
    const ssize_t got = ::read(fd, text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return "";
    at += static_cast<size_t>(got);
  }
  return text;
}

// The keeper's process: runs until the launcher has ended. It ignores the signals of the
// launcher's terminal, such as Ctrl-C, which the launcher handles.
[[noreturn]] void keep(int fd) {
  ::setpgid(0, 0);
  // A socket or pipe of the program would stay open as long as the keeper runs.
  ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(fd) - 1, 0);
  ::close_range(static_cast<unsigned>(fd) + 1, ~0U, 0);
  ::prctl(PR_SET_NAME, "lockstep-keeper");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  std::set<pid_t> groups;
  std::string mark;
  std::optional<steady_clock::time_point> deadline;
  bool expired = false, over = false;
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    ::poll(&ready, 1, wait_ms(deadline));
    if (deadline && steady_clock::now() >= *deadline) {
      kill_all(groups, mark);
      deadline.reset();
      expired = true;
    }
    if ((ready.revents & (POLLIN | POLLHUP)) == 0) continue;
    Message message{};
    const ssize_t got = ::read(fd, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;
    const auto group = static_cast<pid_t>(message.value);
    if (message.what == 'b') {
      expired = over;
      mark = read_text(fd, message.value);
    }
    if (message.what == 'g') groups.insert(group);
    if (message.what == 'g' && expired) ::kill(-group, SIGKILL);
    if (message.what == 'e') {
      kill_all(groups, mark);
      deadline.reset();
      expired = over = true;
    }
    if (message.what == 'r') groups.erase(group);
    if (message.what == 'l') deadline = steady_clock::now() + std::chrono::milliseconds(message.value);
  }
  kill_all(groups, mark);
  ::_exit(0);
}

}  // namespace

Keeper::Keeper() {
  base::Pipe pipe = base::make_pipe();
  pipe_ = std::move(pipe.write_end);
  pid_ = ::fork();
  if (pid_ < 0) throw ConfigError("run", fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid_ == 0) {
    pipe_.reset();
    keep(pipe.read_end.get());
  }
}

Keeper::~Keeper() {
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Keeper::begin(const std::string& mark) {
  const base::MutexLock lock(mutex_);
  longest_silence_ = Clock::duration(0);
  send('b', static_cast<int64_t>(mark.size()), mark);
}
void Keeper::guard(pid_t group) {
  const base::MutexLock lock(mutex_);
  send('g', group);
}
void Keeper::release(pid_t group) {
  const base::MutexLock lock(mutex_);
  send('r', group);
}
void Keeper::renew(std::chrono::milliseconds lease) {
  const base::MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (last_renewal_) longest_silence_ = std::max(longest_silence_, now - *last_renewal_);
  last_renewal_ = now;
  lease_ = lease;
  // If the keeper is paused, the pipe fills up: the launcher must not block on it.
  pollfd room{pipe_.get(), POLLOUT, 0};
  if (::poll(&room, 1, 0) > 0) send('l', lease.count());
}
void Keeper::end() {
  const base::MutexLock lock(mutex_);
  send('e', 0);
}

std::optional<std::chrono::steady_clock::duration> Keeper::lapse() const {
  const base::MutexLock lock(mutex_);
  if (!last_renewal_) return std::nullopt;
  const Clock::duration silence = std::max(longest_silence_, Clock::now() - *last_renewal_);
  return silence >= lease_ ? std::optional(silence) : std::nullopt;
}

void Keeper::send(char what, int64_t value, const std::string& text) const {
  Message message;
  std::memset(&message, 0, sizeof message);
  message.what = what;
  message.value = value;
  const std::string bytes = std::string(reinterpret_cast<const char*>(&message), sizeof message) + text;
  // Errors are ignored: the job can continue without the keeper.
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), bytes.data(), bytes.size());
}

}  // namespace lockstep::launcher
