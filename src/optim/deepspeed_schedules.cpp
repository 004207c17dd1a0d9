#include <lockstep/deepspeed_schedules.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/log.h"
#include "optim/argument.h"
#include "optim/deepspeed_kinds.h"

// The order of the operations is DeepSpeed's, so that the rates agree to the bit. Its
// schedules count from -1, where they have not been stepped yet: its iteration is our step
// less 1.

namespace lockstep::optim {
namespace {

// Of the betas that OneCycle sets, the second.
constexpr double kSecondBeta = 0.99;

template <typename Options>
void check_warm_up(const Options& options) {
  require_at_least(1, schedule_name(kind_name(options)), "warmup_num_steps", options.warmup_num_steps);
}

template <typename Options>
void check_total(const Options& options) {
  require_at_least(1, schedule_name(kind_name(options)), "total_num_steps", options.total_num_steps);
  if (options.total_num_steps < options.warmup_num_steps) {
    base::log_warning("optim", "{} ends before its warm-up does: total_num_steps {}, warmup_num_steps {}",
                      schedule_name(kind_name(options)), options.total_num_steps, options.warmup_num_steps);
  }
}

template <typename Options>
int64_t warm_up_steps(const Options& options) {
  return std::max<int64_t>(2, options.warmup_num_steps);
}

// How far up a step of the warm-up is, from 0 to 1.
template <typename Options>
double height(const Options& options, int64_t iteration) {
  const auto steps = static_cast<double>(warm_up_steps(options));
  if (options.warmup_type == WarmupType::kLinear) return static_cast<double>(iteration) / steps;
  return 1.0 / std::log(steps) * std::log(static_cast<double>(iteration + 1));
}

struct Cycle {
  double first, second, total, ratio;

  explicit Cycle(const DeepSpeedOneCycle& options)
      : first(static_cast<double>(options.cycle_first_step_size)),
        second(static_cast<double>(options.cycle_second_step_size.value_or(options.cycle_first_step_size))),
        total(first + second),
        ratio(first / total) {}
};

// How high in the cycle a step is, from 0 to 1.
double cycle_scale(const DeepSpeedOneCycle& options, const Cycle& cycle, double step) {
  const double x = 1.0 + step / cycle.total - std::floor(1 + step / cycle.total);
  const bool up = x <= cycle.ratio;
  const int64_t stairs = up ? options.cycle_first_stair_count
                            : options.cycle_second_stair_count.value_or(options.cycle_first_stair_count);
  if (stairs <= 0) return up ? x / cycle.ratio : (x - 1) / (cycle.ratio - 1);
  const auto count = static_cast<double>(stairs);
  const double done = std::fmod(step, cycle.total);
  const double stair =
      done <= cycle.first ? done * count / cycle.first : (cycle.total - done) * count / cycle.second;
  return std::floor(stair) / count;
}

}  // namespace

void check_options(const WarmupLr& options) {
  require_not_negative(schedule_name(kind_name(options)), "warmup_min_lr", options.warmup_min_lr);
  if (options.warmup_max_lr)
    require_not_negative(schedule_name(kind_name(options)), "warmup_max_lr", *options.warmup_max_lr);
  check_warm_up(options);
}

void check_options(const WarmupDecayLr& options) {
  require_not_negative(schedule_name(kind_name(options)), "warmup_min_lr", options.warmup_min_lr);
  require_not_negative(schedule_name(kind_name(options)), "warmup_max_lr", options.warmup_max_lr);
  check_warm_up(options);
  check_total(options);
}

void check_options(const WarmupCosineLr& options) {
  require_fraction(schedule_name(kind_name(options)), "warmup_min_ratio", options.warmup_min_ratio);
  require_fraction(schedule_name(kind_name(options)), "cos_min_ratio", options.cos_min_ratio);
  check_warm_up(options);
  check_total(options);
}

void check_options(const LrRangeTest& options) {
  require_not_negative(schedule_name(kind_name(options)), "lr_range_test_min_lr",
                       options.lr_range_test_min_lr);
  require_at_least(1, schedule_name(kind_name(options)), "lr_range_test_step_size",
                   options.lr_range_test_step_size);
  require_not_negative(schedule_name(kind_name(options)), "lr_range_test_step_rate",
                       options.lr_range_test_step_rate);
}

void check_options(const DeepSpeedOneCycle& options) {
  const std::string name = schedule_name(kind_name(options));
  require(options.cycle_min_lr.has_value(), name, "cycle_min_lr", "given", "it is not there");
  require(options.cycle_max_lr.has_value(), name, "cycle_max_lr", "given", "it is not there");
  require_not_negative(name, "cycle_min_lr", *options.cycle_min_lr);
  require_not_negative(name, "cycle_max_lr", *options.cycle_max_lr);
  require_not_negative(name, "decay_lr_rate", options.decay_lr_rate);
  require_at_least(1, name, "cycle_first_step_size", options.cycle_first_step_size);
  require_at_least(0, name, "cycle_second_step_size", options.cycle_second_step_size.value_or(0));
  require_at_least(0, name, "cycle_first_stair_count", options.cycle_first_stair_count);
  require_at_least(0, name, "cycle_second_stair_count", options.cycle_second_stair_count.value_or(0));
  require_at_least(0, name, "decay_step_size", options.decay_step_size);
  require_fraction(name, "cycle_min_mom", options.cycle_min_mom);
  require_fraction(name, "cycle_max_mom", options.cycle_max_mom);
  require_not_negative(name, "decay_mom_rate", options.decay_mom_rate);
}

double rate_at(const WarmupLr& options, int64_t step, double base_lr) {
  const double bottom = options.warmup_min_lr;
  if (step == 0) return bottom;
  const double rise = options.warmup_max_lr.value_or(base_lr) - bottom;
  const double share = step - 1 < warm_up_steps(options) ? height(options, step - 1) : 1.0;
  return bottom + rise * share;
}

double rate_at(const WarmupDecayLr& options, int64_t step, double) {
  const double bottom = options.warmup_min_lr;
  if (step == 0) return bottom;
  const double rise = options.warmup_max_lr - bottom;
  const int64_t iteration = step - 1;
  if (iteration < warm_up_steps(options)) return bottom + rise * height(options, iteration);
  const auto left = static_cast<double>(options.total_num_steps - iteration);
  const auto length = static_cast<double>(options.total_num_steps - warm_up_steps(options));
  return bottom + rise * std::max(0.0, left / std::max(1.0, length));
}

double rate_at(const WarmupCosineLr& options, int64_t step, double base_lr) {
  if (step == 0) return 0;
  const int64_t iteration = step - 1;
  const int64_t steps = warm_up_steps(options);
  if (iteration < steps) {
    const double rise = 1.0 - options.warmup_min_ratio;
    return base_lr * (options.warmup_min_ratio + height(options, iteration) * rise);
  }
  const auto done = static_cast<double>(iteration - steps + 1);
  const auto length = static_cast<double>(std::max<int64_t>(1, options.total_num_steps - steps));
  const double share = std::min(1.0, done / length);
  const double fall = 1.0 - options.cos_min_ratio;
  const double ratio = (1 + std::cos(std::numbers::pi * share)) / 2;
  return base_lr * std::max(0.0, options.cos_min_ratio + fall * ratio);
}

double rate_at(const LrRangeTest& options, int64_t step, double) {
  double interval = static_cast<double>(step) / static_cast<double>(options.lr_range_test_step_size);
  if (options.lr_range_test_staircase) interval = std::floor(interval);
  return options.lr_range_test_min_lr * (1 + options.lr_range_test_step_rate * interval);
}

double rate_at(const DeepSpeedOneCycle& options, int64_t step, double) {
  const Cycle cycle(options);
  const auto at = static_cast<double>(step);
  const double bottom = *options.cycle_min_lr;
  if (at - 1 < cycle.total)
    return bottom + (*options.cycle_max_lr - bottom) * cycle_scale(options, cycle, at);
  if (options.decay_step_size == 0 || options.decay_lr_rate == 0) return bottom;
  const double interval = (at - cycle.total) / static_cast<double>(options.decay_step_size);
  return bottom / (1 + options.decay_lr_rate * interval);
}

std::pair<double, double> betas_at(const DeepSpeedOneCycle& options, int64_t step) {
  const Cycle cycle(options);
  const auto at = static_cast<double>(step);
  const double bottom = options.cycle_min_mom;
  const double top = options.cycle_max_mom;
  // DeepSpeed begins at the bottom and jumps to the top with the first step.
  if (step == 0) return {bottom, kSecondBeta};
  if (at - 1 < cycle.total) return {top - (top - bottom) * cycle_scale(options, cycle, at), kSecondBeta};
  if (options.decay_step_size == 0 || options.decay_mom_rate == 0) return {top, kSecondBeta};
  const double interval = (at - cycle.total) / static_cast<double>(options.decay_step_size);
  return {top * (1 + options.decay_mom_rate * interval), kSecondBeta};
}

}  // namespace lockstep::optim
