#include "optim/deepspeed_scale.h"

#include <lockstep/json.h>
#include <algorithm>

#include "optim/argument.h"

namespace lockstep::optim {
namespace {

constexpr auto kWhat = "DeepSpeed's loss scale";
constexpr double kFactor = 2;

}  // namespace

DeepSpeedLossScale::DeepSpeedLossScale(const DeepSpeedScaleOptions& options)
    : options_(options),
      scale_(std::ldexp(1.0, static_cast<int>(std::clamp<int64_t>(options.initial_scale_power, 0, 127)))),
      hysteresis_(options.hysteresis) {
  require(options.initial_scale_power >= 0 && options.initial_scale_power <= 127, kWhat,
          "initial_scale_power", "between 0 and 127", options.initial_scale_power);
  require_at_least(1, kWhat, "loss_scale_window", options.loss_scale_window);
  require_at_least(1, kWhat, "hysteresis", options.hysteresis);
  require_positive(kWhat, "min_loss_scale", options.min_loss_scale);
}

void DeepSpeedLossScale::update(bool overflow) {
  if (overflow) {
    if (hysteresis_ > 1) {
      --hysteresis_;
    } else if (scale_ == options_.min_loss_scale) {
      throw ConfigError(
          "optim", fmt::format("the gradients overflow and the loss scale is at its minimum already: {}; "
                               "look for NaN in the data and the loss, lower the learning rate, or use "
                               "bf16",
                               scale_));
    } else {
      scale_ = std::max(scale_ / kFactor, options_.min_loss_scale);
    }
    last_overflow_ = iteration_;
  } else {
    if (options_.consecutive_hysteresis) hysteresis_ = options_.hysteresis;
    const int64_t calm = finite_steps();
    if (calm > 0 && calm % options_.loss_scale_window == 0) {
      hysteresis_ = options_.hysteresis;
      scale_ *= kFactor;
    }
  }
  ++iteration_;
}

Json DeepSpeedLossScale::state() const {
  return {{"cur_scale", scale_},
          {"cur_iter", iteration_},
          {"last_overflow_iter", last_overflow_},
          {"cur_hysteresis", hysteresis_}};
}

void DeepSpeedLossScale::load_state(const Json& state) {
  double scale = 0;
  int64_t iteration = 0;
  int64_t last_overflow = 0;
  int64_t hysteresis = 0;
  read_saved(kWhat, [&] {
    state.at("cur_scale").get_to(scale);
    state.at("cur_iter").get_to(iteration);
    state.at("last_overflow_iter").get_to(last_overflow);
    state.at("cur_hysteresis").get_to(hysteresis);
  });
  require_positive("DeepSpeed's loss scale's state", "cur_scale", scale);
  scale_ = scale;
  iteration_ = iteration;
  last_overflow_ = last_overflow;
  hysteresis_ = hysteresis;
}

}  // namespace lockstep::optim
