#pragma once

#include <lockstep/optim.h>

#include <lockstep/json.h>

namespace lockstep::optim {

// The arithmetic of DeepSpeed's DynamicLossScaler, on one number without tensors. GradScaler uses it.
class DeepSpeedLossScale {
 public:
  // ConfigError names the invalid option.
  explicit DeepSpeedLossScale(const DeepSpeedScaleOptions& options);

  double scale() const { return scale_; }
  // Call once a step. An overflow reduces the hysteresis, or halves the scale if none is left; a window
  // of steps without overflow doubles the scale. ConfigError: an overflow at the minimum scale; nothing
  // has changed then.
  void update(bool overflow);
  int64_t finite_steps() const { return iteration_ - last_overflow_ - 1; }  // since the last overflow

  // "cur_scale", "cur_iter", "last_overflow_iter" and "cur_hysteresis", as in DeepSpeed.
  Json state() const;
  void load_state(const Json& state);

 private:
  DeepSpeedScaleOptions options_;
  double scale_;
  int64_t hysteresis_;
  int64_t iteration_ = 0;
  int64_t last_overflow_ = -1;
};

}  // namespace lockstep::optim
