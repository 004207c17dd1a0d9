#include "launch/agent/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::launcher {
namespace {

constexpr std::string_view kErase = "\r\x1b[K";
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";

// One less than the terminal is wide: a full line would begin the next one.
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

std::string counted(int number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace

std::string format_status(const JobStatus& status) {
  std::string text = fmt::format("[run] {}", clock_text(status.elapsed));
  if (status.ranks == 0) return text + (status.waiting_for.empty() ? "" : ", " + status.waiting_for);
  text += fmt::format(", {} on {}", counted(status.ranks, "rank"), counted(status.nodes, "node"));
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
  // The cursor goes back to where others, who do not know of it, would write.
  if (shown_) text += fmt::format("{}{}{}\r", kDim, std::string_view(text_).substr(0, width()), kPlain);
  return text;
}

}  // namespace lockstep::launcher
