#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::train {

// The position of a training, as it is displayed.
struct ProgressState {
  int64_t epoch = 0;  // from 1
  int64_t epochs = 0;
  int64_t batch = 0;  // done in this epoch
  int64_t batches = 0;
  double loss = 0;
  double samples_per_s = 0;
  std::chrono::duration<double> left{0};
  std::string_view evaluation = {};  // "validation" or "test"; empty: training
};

// "epoch 3/50 [######----] 12/20  loss 0.1234  1.2e+03 samples/s  0:42 left", cut to the width. Of an
// evaluation: "validation [######----] 12/20  loss 0.1234  1.2e+03 samples/s  0:42 left".
std::string progress_text(const ProgressState& state, int width);

// One line at the bottom of a terminal that is overwritten at most ten times a second. If standard
// error is not a terminal, a line every ten seconds. Only on rank 0.
class ProgressBar {
 public:
  // `mode`: auto; bar, also without a terminal; none.
  ProgressBar(const std::string& mode, bool is_main);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Whether a new text would be shown now. Making a text may wait for the device.
  bool due() const;
  void show(const ProgressState& state);
  // Removes the line, so that other lines can be printed.
  void clear();

 private:
  enum class Kind { kBar, kLines, kNone };
  static Kind kind_of(const std::string& mode, bool is_main);

  const Kind kind_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace lockstep::train
