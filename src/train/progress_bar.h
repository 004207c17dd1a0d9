#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace lockstep::train {

// The position of a training, as it is displayed.
struct ProgressState {
  int64_t epoch = 0;  // from 1
  int64_t epochs = 0;
  int64_t batch = 0;  // done in this epoch
  int64_t batches = 0;
  std::optional<double> loss = {};  // unset: no batch is done, so the two values below are unknown too
  double samples_per_s = 0;
  std::chrono::duration<double> left{0};
  std::string evaluation = {};  // "validation" or "test"; empty: training
};

// "epoch 3/50 [######----] 12/20  loss 0.1234  1.2e+03 samples/s  0:42 left", cut to the width. Of an
// evaluation: "validation [######----] 12/20  loss 0.1234  1.2e+03 samples/s  0:42 left". Before the first
// batch is done: "validation [----------] 0/20".
std::string progress_text(const ProgressState& state, int width);

// How much of a training is done, and how much is left to its end.
struct ProgressPace {
  int64_t steps = 0;                          // done in `stepping`
  double steps_left = 0;                      // to the last epoch or the last step
  std::chrono::duration<double> stepping{0};  // without validations and saves
  // To the time limit.
  std::optional<std::chrono::duration<double>> limit = {};
};
std::chrono::duration<double> time_left(const ProgressPace& pace);

// Where lines go, and how often.
struct ProgressLines {
  std::chrono::microseconds period = std::chrono::seconds(10);
  std::function<void(const std::string& line)> write = {};  // called by another thread; empty: standard error
};

// One line at the bottom of a terminal that is overwritten at most ten times a second. If standard error is
// not a terminal, a line every ten seconds, also while a batch takes longer: a thread writes the last
// position. Only on rank 0. Its functions are for one thread.
class ProgressBar {
 public:
  // `mode`: auto; bar, also without a terminal; lines, also on a terminal; none.
  ProgressBar(const std::string& mode, bool is_main, ProgressLines lines = {});
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // An epoch or an evaluation begins. Loss and times of an epoch before it stay until the next show().
  void begin(ProgressState state);
  // Whether a new text is wanted now. Making a text may wait for the device.
  bool due() const;
  void show(ProgressState state);
  // The evaluation is over: its text is removed, and lines are about the training again.
  void end_evaluation();
  // Removes the bar, so that other lines can be printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind { kBar, kLines, kNone };
  static Kind kind_of(const std::string& mode, bool is_main);

  void keep(ProgressState state);
  void draw(const ProgressState& state);
  void write_lines();  // the thread

  const Kind kind_;
  const ProgressLines lines_;
  bool shown_ = false;
  Clock::time_point last_;  // show()
  base::Mutex mutex_;
  base::Condition changed_;
  std::optional<ProgressState> training_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<ProgressState> evaluation_ LOCKSTEP_GUARDED_BY(mutex_);
  bool ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // of kLines
};

}  // namespace lockstep::train
