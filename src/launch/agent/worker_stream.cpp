#include "launch/agent/worker_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/pipe.h"
#include "launch/agent/log_folder.h"

namespace lockstep::launcher {
namespace {

// A line longer than this is shown in pieces.
constexpr size_t kMaxLineBytes = 1 << 16;
constexpr std::chrono::milliseconds kCongestionPause{20};
// More than a pipe holds; a daemon that never stops writing is not waited for.
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
    // Let the worker wait rather than our memory grow.
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
  // A terminal whose last writer has gone says EIO.
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
  if (last_lines_.size() > kRememberedLines) last_lines_.pop_front();
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
