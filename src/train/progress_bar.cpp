#include "train/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/process.h"

namespace lockstep::train {
namespace {

constexpr std::chrono::milliseconds kBarPeriod{100};
// So much more often than a line is written the training reports its position.
constexpr int kReportsPerLine = 10;
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

void write_to_stderr(const std::string& line) { std::fwrite(line.data(), 1, line.size(), stderr); }

}  // namespace

std::string progress_text(const ProgressState& state, int width) {
  const int64_t cells = state.batches > 0 ? kBarCells * state.batch / state.batches : 0;
  const auto full = static_cast<size_t>(std::clamp<int64_t>(cells, 0, kBarCells));
  const std::string what =
      state.evaluation.empty() ? fmt::format("epoch {}/{}", state.epoch, state.epochs) : state.evaluation;
  std::string text = fmt::format("{} [{}{}] {}/{}", what, std::string(full, '#'),
                                 std::string(kBarCells - full, '-'), state.batch, state.batches);
  if (state.loss) {
    text += fmt::format("  loss {:.4g}  {:.3g} samples/s  {} left", *state.loss, state.samples_per_s,
                        clock_text(state.left));
  }
  // The last column is left free: some terminals wrap when it is written.
  if (width > 1 && text.size() >= static_cast<size_t>(width)) text.resize(static_cast<size_t>(width) - 1);
  return text;
}

std::chrono::duration<double> time_left(const ProgressPace& pace) {
  std::chrono::duration<double> left{0};
  if (pace.steps > 0) left = pace.stepping * pace.steps_left / static_cast<double>(pace.steps);
  if (pace.limit) left = std::min(left, *pace.limit);
  return std::max(left, std::chrono::duration<double>(0));
}

ProgressBar::Kind ProgressBar::kind_of(const std::string& mode, bool is_main) {
  if (!is_main || mode == "none") return Kind::kNone;
  if (mode == "lines") return Kind::kLines;
  return mode == "bar" || ::isatty(STDERR_FILENO) == 1 ? Kind::kBar : Kind::kLines;
}

// The first line comes after one period: a short training needs none.
ProgressBar::ProgressBar(const std::string& mode, bool is_main, ProgressLines lines)
    : kind_(kind_of(mode, is_main)),
      lines_{.period = lines.period, .write = lines.write ? std::move(lines.write) : write_to_stderr},
      last_(Clock::now()) {
  if (kind_ == Kind::kLines) thread_ = base::start_without_signals([this] { write_lines(); });
}

ProgressBar::~ProgressBar() {
  if (thread_.joinable()) {
    {
      const base::MutexLock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  clear();
}

void ProgressBar::write_lines() {
  base::MutexLock lock(mutex_);
  Clock::time_point next = Clock::now() + lines_.period;
  while (!ended_) {
    if (Clock::now() < next) {
      changed_.wait_until(lock, next);
      continue;
    }
    next = Clock::now() + lines_.period;
    const std::optional<ProgressState>& state = evaluation_ ? evaluation_ : training_;
    if (!state) continue;
    const std::string line = progress_text(*state, std::numeric_limits<int>::max()) + "\n";
    lock.unlock();  // a full pipe must not stop the training
    lines_.write(line);
    lock.lock();
  }
}

void ProgressBar::keep(ProgressState state) {
  const base::MutexLock lock(mutex_);
  (state.evaluation.empty() ? training_ : evaluation_) = std::move(state);
}

void ProgressBar::draw(const ProgressState& state) {
  shown_ = true;
  // Moves to the first column, writes the text, and clears the rest of the line.
  write_to_stderr("\r" + progress_text(state, terminal_width()) + "\033[K");
}

void ProgressBar::begin(ProgressState state) {
  if (kind_ == Kind::kNone) return;
  if (kind_ == Kind::kBar) {
    // A bar that is on the screen says more than one without a batch.
    if (!state.evaluation.empty()) draw(state);
    return;
  }
  if (state.evaluation.empty()) {
    const base::MutexLock lock(mutex_);
    if (training_) {
      state.loss = training_->loss;
      state.samples_per_s = training_->samples_per_s;
      state.left = training_->left;
    }
  }
  keep(std::move(state));
}

bool ProgressBar::due() const {
  if (kind_ == Kind::kNone) return false;
  const std::chrono::microseconds period = kind_ == Kind::kBar ? kBarPeriod : lines_.period / kReportsPerLine;
  return Clock::now() - last_ >= period;
}

void ProgressBar::show(ProgressState state) {
  if (kind_ == Kind::kNone) return;
  last_ = Clock::now();
  if (kind_ == Kind::kBar) {
    draw(state);
  } else {
    keep(std::move(state));
  }
}

void ProgressBar::end_evaluation() {
  clear();
  const base::MutexLock lock(mutex_);
  evaluation_.reset();
}

void ProgressBar::clear() {
  if (!shown_) return;
  shown_ = false;
  write_to_stderr("\r\033[K");
}

}  // namespace lockstep::train
