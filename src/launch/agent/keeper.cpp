#include "launch/agent/keeper.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/pipe.h"
#include "launch/agent/leftovers.h"

namespace lockstep::launcher {
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

// Until the launcher is gone. Its signals are not ours: of a Ctrl-C it makes what it
// wants.
[[noreturn]] void keep(int fd) {
  ::setpgid(0, 0);
  // A socket or pipe of a program would look open as long as we live.
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
  const std::lock_guard lock(mutex_);
  longest_silence_ = Clock::duration(0);
  send('b', static_cast<int64_t>(mark.size()), mark);
}
void Keeper::guard(pid_t group) {
  const std::lock_guard lock(mutex_);
  send('g', group);
}
void Keeper::release(pid_t group) {
  const std::lock_guard lock(mutex_);
  send('r', group);
}
void Keeper::renew(std::chrono::milliseconds lease) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (last_renewal_) longest_silence_ = std::max(longest_silence_, now - *last_renewal_);
  last_renewal_ = now;
  lease_ = lease;
  // A keeper that is stopped lets the pipe fill up: the launcher does not wait for it.
  pollfd room{pipe_.get(), POLLOUT, 0};
  if (::poll(&room, 1, 0) > 0) send('l', lease.count());
}
void Keeper::end() {
  const std::lock_guard lock(mutex_);
  send('e', 0);
}

std::optional<std::chrono::steady_clock::duration> Keeper::lapse() const {
  const std::lock_guard lock(mutex_);
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
  // A keeper that is gone is no reason to end a job: only the safety net is.
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), bytes.data(), bytes.size());
}

}  // namespace lockstep::launcher
