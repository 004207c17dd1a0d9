#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// What the job is doing, for the last line of a terminal.
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
  std::optional<Steps> steps;  // of this node's ranks, where they tell
  std::string waiting_for;     // what it waits for while none runs
};

// "[run] 1:02:05, 8 ranks on 2 nodes, step 117-120, restart 1 of 3"
std::string format_status(const JobStatus& status);

// A line that stands below all that is written to a terminal: erased before every
// write and drawn again behind it. The consoles of one terminal share it.
class StatusLine {
 public:
  // "": none.
  void set(std::string text) { text_ = std::move(text); }
  // What to write for these bytes. Nothing is drawn into a line that has not ended.
  std::string around(std::string_view bytes);

 private:
  std::string text_;
  bool shown_ = false;
  bool at_line_start_ = true;
};

}  // namespace lockstep::launcher
