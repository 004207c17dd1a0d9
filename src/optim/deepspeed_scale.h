#pragma once

#include <lockstep/grad_scaler.h>

#include <lockstep/json.h>

namespace lockstep::optim {

// The arithmetic of DeepSpeed's DynamicLossScaler, for one number and no tensors. GradScaler
// scales by it.
class DeepSpeedLossScale {
 public:
  // ConfigError names the option that makes no sense.
  explicit DeepSpeedLossScale(const DeepSpeedScaleOptions& options);

  double scale() const { return scale_; }
  // Once a step. An overflow uses up hysteresis, and when there is none left halves the scale;
  // a window of steps without one doubles it. ConfigError: an overflow where the scale is at
  // its minimum already; nothing has changed then.
  void update(bool overflow);
  int64_t finite_steps() const { return iteration_ - last_overflow_ - 1; }  // since the last overflow

  // "cur_scale", "cur_iter", "last_overflow_iter" and "cur_hysteresis", as there.
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
