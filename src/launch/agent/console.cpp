#include "launch/agent/console.h"

#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace lockstep::launcher {
namespace {

bool is_file(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) != 0 || S_ISREG(status.st_mode);
}

// https://no-color.org
bool wants_colours() {
  const char* refused = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  return (refused == nullptr || *refused == '\0') && kind != nullptr && std::string_view(kind) != "dumb";
}

}  // namespace

Console::Console(base::EventLoop& loop, int fd, StatusLine& status)
    : loop_(loop),
      fd_(fd),
      status_(status),
      terminal_(::isatty(fd) == 1),
      decorated_(terminal_ && wants_colours()),
      pollable_(!is_file(fd)) {}

Console::~Console() {
  if (watching_) loop_.forget(fd_);
  pollable_ = false;
  while (write_some()) {
  }
}

void Console::write(std::string_view bytes) {
  if (broken_) return;
  if (decorated_) {
    pending_ += status_.around(bytes);
  } else {
    pending_ += bytes;
  }
  write_ready();
}

void Console::show_status(const std::string& text) {
  if (!decorated_) return;
  status_.set(text);
  write("");
}

void Console::write_ready() {
  while (write_some()) {
  }
  const bool wants_watch = !pending_.empty();
  if (wants_watch == watching_) return;
  watching_ = wants_watch;
  if (watching_) {
    loop_.watch(fd_, EPOLLOUT, [this](uint32_t) { write_ready(); });
  } else {
    loop_.forget(fd_);
  }
}

bool Console::write_some() {
  if (pending_.empty()) return false;
  if (pollable_) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return false;
  }
  // A pipe that is ready takes PIPE_BUF bytes without blocking, and in one piece.
  const ssize_t written = ::write(fd_, pending_.data(), std::min<size_t>(pending_.size(), PIPE_BUF));
  if (written < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
  if (written < 0) {
    broken_ = true;
    pending_.clear();
    return false;
  }
  pending_.erase(0, static_cast<size_t>(written));
  return true;
}

}  // namespace lockstep::launcher
