#include "train/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace lockstep::train {
namespace {

constexpr std::chrono::milliseconds kBarPeriod{100};
constexpr std::chrono::milliseconds kLinePeriod{10000};
constexpr int kBarCells = 20;
constexpr int kDefaultWidth = 100;

int terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultWidth;
  return size.ws_col;
}

std::string clock_text(std::chrono::duration<double> time) {
  const auto seconds = static_cast<int64_t>(time.count());
  if (seconds >= 3600) {
    return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  }
  return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
}

}  // namespace

std::string progress_text(const ProgressState& state, int width) {
  const int64_t cells = state.batches > 0 ? kBarCells * state.batch / state.batches : 0;
  const auto full = static_cast<size_t>(std::clamp<int64_t>(cells, 0, kBarCells));
  const std::string what = state.evaluation.empty() ? fmt::format("epoch {}/{}", state.epoch, state.epochs)
                                                    : std::string(state.evaluation);
  std::string text = fmt::format("{} [{}{}] {}/{}  loss {:.4g}  {:.3g} samples/s  {} left", what,
                                 std::string(full, '#'), std::string(kBarCells - full, '-'), state.batch,
                                 state.batches, state.loss, state.samples_per_s, clock_text(state.left));
  // The last column is left free: some terminals wrap when it is written.
  if (width > 1 && text.size() >= static_cast<size_t>(width)) text.resize(static_cast<size_t>(width) - 1);
  return text;
}

ProgressBar::Kind ProgressBar::kind_of(const std::string& mode, bool is_main) {
  if (!is_main || mode == "none") return Kind::kNone;
  return mode == "bar" || ::isatty(STDERR_FILENO) == 1 ? Kind::kBar : Kind::kLines;
}

// The first line comes after one period: a short training needs none.
ProgressBar::ProgressBar(const std::string& mode, bool is_main)
    : kind_(kind_of(mode, is_main)), last_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() { clear(); }

bool ProgressBar::due() const {
  if (kind_ == Kind::kNone) return false;
  const auto period = kind_ == Kind::kBar ? kBarPeriod : kLinePeriod;
  return std::chrono::steady_clock::now() - last_ >= period;
}

void ProgressBar::show(const ProgressState& state) {
  if (kind_ == Kind::kNone) return;
  last_ = std::chrono::steady_clock::now();
  std::string line;
  if (kind_ == Kind::kBar) {
    shown_ = true;
    // Moves to the first column, writes the text, and clears the rest of the line.
    line = "\r" + progress_text(state, terminal_width()) + "\033[K";
  } else {
    line = progress_text(state, std::numeric_limits<int>::max()) + "\n";
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void ProgressBar::clear() {
  if (!shown_) return;
  shown_ = false;
  std::fputs("\r\033[K", stderr);
}

}  // namespace lockstep::train
