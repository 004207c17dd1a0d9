#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "launch/agent/console.h"

namespace lockstep::launcher {

// Where the lines of one standard stream of one worker go, besides being remembered.
struct StreamSinks {
  Console* console = nullptr;  // nullptr: not shown
  std::string prefix;          // before each line on the console; "": bytes pass as they come
  std::string colour;          // of the prefix on a console that is decorated: an SGR number
  std::string file;            // "": none; made anew, gets the bytes unchanged
  // Lines that hold any of these are appended to filtered_file, with the prefix.
  std::vector<std::string> filters;
  std::string filtered_file;
};

// Reads one standard stream of a worker through a pipe, or through a terminal of its
// own where our console is one, so that a program buffers and colours as it would if
// it were started by hand.
class WorkerStream {
 public:
  static constexpr size_t kRememberedLines = 20;

  // Throws ConfigError when a file cannot be made.
  WorkerStream(base::EventLoop& loop, StreamSinks sinks);
  WorkerStream(const WorkerStream&) = delete;
  WorkerStream& operator=(const WorkerStream&) = delete;
  ~WorkerStream();

  // The end for the worker. Let go of it once the worker has it.
  int worker_fd() const { return worker_end_.get(); }
  void release_worker_fd() { worker_end_.reset(); }

  // Takes what is there and ends the stream, also when a process that the worker has
  // left behind still holds it open.
  void finish();
  // The last lines, without their ends.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void open_ends(bool terminal);
  void on_readable();
  // False at the end of the stream, or when there is nothing to read now.
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
