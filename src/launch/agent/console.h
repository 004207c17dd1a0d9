#pragma once

#include <string>
#include <string_view>

#include "base/event_loop.h"
#include "launch/agent/status_line.h"

namespace lockstep::launcher {

// The launcher's standard output or error: whole lines of many workers, never mixed,
// and never waited for: a terminal that is stopped or a slow reader must not keep the
// launcher from its heartbeats. One thread: the event loop's.
class Console {
 public:
  // fd: 1 or 2. It stays open and stays as it is (blocking): others share it.
  // status: what stands below the lines, where this is decorated; outlives the console.
  Console(base::EventLoop& loop, int fd, StatusLine& status);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  // Writes what is left, waiting for the reader.
  ~Console();

  void write(std::string_view bytes);
  // So much waits to be written that producers should pause.
  bool congested() const { return pending_.size() > kMaxPending; }
  bool is_terminal() const { return terminal_; }
  // A terminal that understands colours, of a user who wants them (NO_COLOR).
  bool is_decorated() const { return decorated_; }
  // Changes the line below all others. No effect where this is not decorated.
  void show_status(const std::string& text);

 private:
  static constexpr size_t kMaxPending = 1 << 20;

  void write_ready();
  // False once nothing more can be written now.
  bool write_some();

  base::EventLoop& loop_;
  const int fd_;
  StatusLine& status_;
  const bool terminal_;
  const bool decorated_;
  bool pollable_ = true;  // a file is always ready, and epoll does not take it
  bool watching_ = false;
  bool broken_ = false;  // the reader is gone: what follows is dropped
  std::string pending_;
};

}  // namespace lockstep::launcher
