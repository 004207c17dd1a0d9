#include "train/time_limits.h"

#include <algorithm>

#include "comm/agree.h"

namespace lockstep::train {
namespace {

// A decision as one number: two flags below the interval.
constexpr int64_t kStop = 1;
constexpr int64_t kSave = 2;
constexpr int64_t kUnit = 4;

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void TimeLimits::begin(double before_s) {
  before_s_ = before_s;
  start_ = last_save_ = last_asked_ = Clock::now();
  steps_ = 0;
  interval_ = 1;
}

double TimeLimits::trained_s() const { return before_s_ + seconds(Clock::now() - start_); }

int64_t TimeLimits::decide() const {
  double left_s = 1;  // until the next event, and at most until the next question
  int64_t flags = 0;
  const auto check = [&](double limit_s, double passed_s, int64_t flag) {
    if (limit_s <= 0) return;
    if (passed_s >= limit_s) flags |= flag;
    left_s = std::min(left_s, passed_s >= limit_s ? limit_s : limit_s - passed_s);
  };
  check(options_.max_time_s, trained_s(), kStop);
  check(options_.save_every_s, seconds(Clock::now() - last_save_), kSave);
  const double step_s = seconds(Clock::now() - last_asked_) / static_cast<double>(steps_);
  const double wanted = step_s > 0 ? left_s / step_s : 1;
  // The interval grows slowly, because steps may become slower again.
  const auto most = static_cast<double>(2 * interval_);
  return flags + kUnit * static_cast<int64_t>(std::clamp(wanted, 1.0, most));
}

TimeLimits::Due TimeLimits::after_step() {
  if (options_.max_time_s <= 0 && options_.save_every_s <= 0) return {};
  if (++steps_ < interval_) return {};
  const int64_t decision = comm::value_of_main_rank(group_, decide());
  interval_ = decision / kUnit;
  steps_ = 0;
  last_asked_ = Clock::now();
  return {.stop = (decision & kStop) != 0, .save = (decision & kSave) != 0};
}

}  // namespace lockstep::train
