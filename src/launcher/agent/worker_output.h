#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {

// What the job is doing, for the status line of a terminal.
struct JobStatus {
  std::chrono::seconds elapsed{0};
  int ranks = 0;  // 0: none runs
  int nodes = 1;
  int restarts = 0;
  int max_restarts = 0;
  struct Steps {
    int64_t least = 0;
    int64_t most = 0;
  };
  std::optional<Steps> steps;  // of this node's ranks, if they report steps
  std::string waiting_for;     // what the job waits for while no rank runs
};

// "[run] 1:02:05, 8 ranks on 2 nodes, step 117-120, restart 1 of 3"
std::string format_status(const JobStatus& status);

// A line below everything that is written to a terminal: erased before every write and drawn
// again after it. The consoles of one terminal share it.
class StatusLine {
 public:
  // "": none.
  void set(std::string text) { text_ = std::move(text); }
  // The bytes with the erased and the new status line around them. Nothing is drawn while the
  // last line of output has not ended.
  std::string around(std::string_view bytes);

 private:
  std::string text_;
  bool shown_ = false;
  bool at_line_start_ = true;
};

// The launcher's standard output or error: whole lines of many workers, never mixed. write()
// never blocks: a stopped terminal or a slow reader must not delay the launcher. Used from the
// event loop's thread.
class Console {
 public:
  // fd: 1 or 2. It stays open and blocking: other processes share it. status: the line below the
  // output if this is decorated; outlives the console.
  Console(base::EventLoop& loop, int fd, StatusLine& status);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  // Writes what is left; blocks until the reader has taken it.
  ~Console();

  void write(std::string_view bytes);
  // Whether so much waits to be written that producers should pause.
  bool congested() const { return pending_.size() > kMaxPending; }
  bool is_terminal() const { return terminal_; }
  // Whether it is a terminal with colours and the user wants them (NO_COLOR).
  bool is_decorated() const { return decorated_; }
  // Changes the status line. No effect if this is not decorated.
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
  bool pollable_ = true;  // false for a file: always ready, and epoll rejects it
  bool watching_ = false;
  bool broken_ = false;  // the reader has closed it: all further output is dropped
  std::string pending_;
};

// Where the lines of one standard stream of one worker go. The last ones are also kept in memory.
struct StreamSinks {
  Console* console = nullptr;  // nullptr: not shown
  std::string prefix;          // before each line on the console; "": bytes pass unchanged
  std::string colour;          // of the prefix on a console that is decorated: an SGR number
  std::string file;            // "": none; replaced, gets the bytes unchanged
  // Lines that hold any of these are appended to filtered_file, with the prefix.
  std::vector<std::string> filters;
  std::string filtered_file;
};

// Reads one standard stream of a worker through a pipe, or through a pseudo-terminal if our
// console is a terminal, so that the program buffers and colours its output as if it were started
// by hand.
class WorkerStream {
 public:
  static constexpr size_t kKeptLines = 20;

  // Throws ConfigError if a file cannot be made.
  WorkerStream(base::EventLoop& loop, StreamSinks sinks);
  WorkerStream(const WorkerStream&) = delete;
  WorkerStream& operator=(const WorkerStream&) = delete;
  ~WorkerStream();

  // The worker's end; call release_worker_fd() once the worker has inherited it.
  int worker_fd() const { return worker_end_.get(); }
  void release_worker_fd() { worker_end_.reset(); }

  // Reads what is there and ends the stream, even if a process that the worker left behind still
  // holds it open.
  void finish();
  // The last lines, without their ends.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void open_ends(bool terminal);
  void on_readable();
  // False at the end of the stream, or if there is nothing to read now.
  bool read_some();
  void take(std::string_view bytes);
  void take_line(std::string_view line);
  void write_file(base::UniqueFd& fd, const std::string& path, std::string_view bytes);
  void close();

  base::EventLoop& loop_;
  const StreamSinks sinks_;
  base::UniqueFd our_end_;
  base::UniqueFd worker_end_;
  base::UniqueFd file_;
  base::UniqueFd filtered_file_;
  base::EventLoop::Timer pause_;
  std::string partial_line_;
  std::deque<std::string> last_lines_;
};

}  // namespace lockstep::launcher
