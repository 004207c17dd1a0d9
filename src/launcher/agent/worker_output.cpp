#include "launcher/agent/worker_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <fmt/format.h>
#include <limits.h>
#include <lockstep/error.h>
#include <pty.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/process.h"
#include "launcher/agent/log_folder.h"
#include "launcher/job.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kErase = "\r\x1b[K";
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";

// One less than the terminal's width: a full line would move the cursor to the next one.
size_t width() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1u : 79u;
}

std::string clock_text(std::chrono::seconds time) {
  const int64_t s = time.count();
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

std::string format_status(const JobStatus& status) {
  std::string text = fmt::format("[run] {}", clock_text(status.elapsed));
  if (status.ranks == 0) return text + (status.waiting_for.empty() ? "" : ", " + status.waiting_for);
  text += fmt::format(", {} on {}", count_of(status.ranks, "rank"), count_of(status.nodes, "node"));
  if (status.steps) {
    text += fmt::format(", step {}", status.steps->least);
    if (status.steps->most != status.steps->least) text += fmt::format("-{}", status.steps->most);
  }
  if (status.max_restarts > 0)
    text += fmt::format(", restart {} of {}", status.restarts, status.max_restarts);
  return text;
}

std::string StatusLine::around(std::string_view bytes) {
  std::string text;
  if (shown_) text += kErase;
  text += bytes;
  if (!bytes.empty()) at_line_start_ = bytes.back() == '\n';
  shown_ = at_line_start_ && !text_.empty();
  // The cursor goes back to the line's start, where other processes that write to the terminal
  // would continue.
  if (shown_) text += fmt::format("{}{}{}\r", kDim, std::string_view(text_).substr(0, width()), kPlain);
  return text;
}

// --- Console ---

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
  // A pipe that is ready takes PIPE_BUF bytes without blocking, and atomically.
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

// --- WorkerStream ---

namespace {

// A longer line is printed in pieces.
constexpr size_t kMaxLineBytes = 1 << 16;
constexpr std::chrono::milliseconds kCongestionPause{20};
// More than a pipe holds; limits the wait for a daemon that never stops writing.
constexpr int kMaxDrainReads = 256;

}  // namespace

WorkerStream::WorkerStream(base::EventLoop& loop, StreamSinks sinks) : loop_(loop), sinks_(std::move(sinks)) {
  if (!sinks_.file.empty()) file_ = open_log_file(sinks_.file, O_TRUNC);
  if (!sinks_.filters.empty()) filtered_file_ = open_log_file(sinks_.filtered_file, O_APPEND);
  open_ends(sinks_.console != nullptr && sinks_.console->is_terminal());
  ::fcntl(our_end_.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(our_end_.get(), EPOLLIN, [this](uint32_t) { on_readable(); });
}

WorkerStream::~WorkerStream() { close(); }

void WorkerStream::open_ends(bool terminal) {
  if (terminal) {
    int ends[2];
    winsize size{};
    ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    termios raw{};
    ::cfmakeraw(&raw);
    if (::openpty(&ends[0], &ends[1], nullptr, &raw, &size) == 0) {
      our_end_.reset(ends[0]);
      worker_end_.reset(ends[1]);
      for (const int fd : ends) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      return;
    }
  }
  base::Pipe pipe = base::make_pipe();
  our_end_ = std::move(pipe.read_end);
  worker_end_ = std::move(pipe.write_end);
}

void WorkerStream::on_readable() {
  if (sinks_.console != nullptr && sinks_.console->congested()) {
    // The worker has to wait so that our memory does not grow.
    loop_.change(our_end_.get(), 0);
    pause_ = loop_.after(kCongestionPause, [this] { loop_.change(our_end_.get(), EPOLLIN); });
    return;
  }
  read_some();
}

bool WorkerStream::read_some() {
  std::array<char, 1 << 14> buffer;
  const ssize_t got = ::read(our_end_.get(), buffer.data(), buffer.size());
  if (got > 0) {
    take({buffer.data(), static_cast<size_t>(got)});
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  // A pseudo-terminal without a writer returns EIO.
  if (got == 0 || errno != EAGAIN) close();
  return false;
}

void WorkerStream::take(std::string_view bytes) {
  write_file(file_, sinks_.file, bytes);
  if (sinks_.console != nullptr && sinks_.prefix.empty()) sinks_.console->write(bytes);
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    partial_line_ += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      bytes = {};
      if (partial_line_.size() < kMaxLineBytes) break;
    } else {
      bytes.remove_prefix(end + 1);
    }
    take_line(partial_line_);
    partial_line_.clear();
  }
}

void WorkerStream::take_line(std::string_view line) {
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kKeptLines) last_lines_.pop_front();
  const std::string shown = fmt::format("{}{}\n", sinks_.prefix, line);
  if (sinks_.console != nullptr && !sinks_.prefix.empty()) {
    const bool coloured = sinks_.console->is_decorated() && !sinks_.colour.empty();
    sinks_.console->write(coloured ? fmt::format("\x1b[{}m{}\x1b[0m{}\n", sinks_.colour, sinks_.prefix, line)
                                   : shown);
  }
  const bool wanted = std::any_of(sinks_.filters.begin(), sinks_.filters.end(), [&](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
  if (wanted) write_file(filtered_file_, sinks_.filtered_file, shown);
}

void WorkerStream::write_file(base::UniqueFd& fd, const std::string& path, std::string_view bytes) {
  while (fd && !bytes.empty()) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      base::log_warning("run", "'{}' gets no more of the worker's output: {}", path, std::strerror(errno));
      fd.reset();
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void WorkerStream::finish() {
  for (int i = 0; i < kMaxDrainReads && our_end_ && read_some(); ++i) {
  }
  close();
}

void WorkerStream::close() {
  if (!our_end_) return;
  loop_.cancel(pause_);
  loop_.forget(our_end_.get());
  our_end_.reset();
  if (!partial_line_.empty()) take_line(partial_line_);
  partial_line_.clear();
}

}  // namespace lockstep::launcher
