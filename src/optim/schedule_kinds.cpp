#include "optim/schedule_kinds.h"

#include <lockstep/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/log.h"
#include "optim/argument.h"

namespace lockstep::optim {

// --- PyTorch's schedules ---
//
// The order of operations is PyTorch's, so that the closed forms agree to the bit.

namespace {

double cosine(double top, double bottom, double done, double length) {
  return bottom + (top - bottom) * (1 + std::cos(std::numbers::pi * done / length)) / 2;
}

double interpolate(OneCycle::Anneal anneal, double start, double end, double share) {
  if (anneal == OneCycle::Anneal::kLinear) return (end - start) * share + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
}

// The phase of a step of a one-cycle schedule, and the share of the phase that has passed.
struct OneCyclePlace {
  int phase = 0;  // 0: up, 1: down, 2: the tail of three phases
  double share = 0;
};

OneCyclePlace place_in(const OneCycle& options, int64_t step) {
  const auto total = static_cast<double>(options.total_steps);
  std::vector<double> ends{options.pct_start * total - 1};
  if (options.three_phase) ends.push_back(2 * options.pct_start * total - 2);
  ends.push_back(total - 1);
  const auto at = static_cast<double>(std::min(step, options.total_steps - 1));
  size_t phase = 0;
  while (phase + 1 < ends.size() && at > ends[phase]) ++phase;
  const double start = phase == 0 ? 0 : ends[phase - 1];
  const double length = ends[phase] - start;
  // A phase of no steps: PyTorch divides by zero.
  return {static_cast<int>(phase), length > 0 ? (at - start) / length : 1.0};
}

}  // namespace

void check_options(const StepDecay& options) {
  require_at_least(1, schedule_name(kind_name(options)), "every", options.every);
  require_positive(schedule_name(kind_name(options)), "gamma", options.gamma);
}

void check_options(const MultiStepDecay& options) {
  require(!options.milestones.empty(), schedule_name(kind_name(options)), "milestones", "one step or more",
          "[]");
  for (int64_t milestone : options.milestones) {
    require_at_least(0, schedule_name(kind_name(options)), "milestones", milestone);
  }
  require_positive(schedule_name(kind_name(options)), "gamma", options.gamma);
}

void check_options(const ExponentialDecay& options) {
  require_positive(schedule_name(kind_name(options)), "gamma", options.gamma);
}

void check_options(const PolynomialDecay& options) {
  require_at_least(1, schedule_name(kind_name(options)), "total_steps", options.total_steps);
  require_not_negative(schedule_name(kind_name(options)), "power", options.power);
}

void check_options(const CyclicRate& options) {
  if (options.base_lr) require_not_negative(schedule_name(kind_name(options)), "base_lr", *options.base_lr);
  require_not_negative(schedule_name(kind_name(options)), "max_lr", options.max_lr);
  require(!options.base_lr || options.max_lr >= *options.base_lr, schedule_name(kind_name(options)), "max_lr",
          "at least base_lr", options.max_lr);
  require_at_least(1, schedule_name(kind_name(options)), "step_size", options.step_size);
}

void check_options(const CosineAnnealing& options) {
  require_at_least(1, schedule_name(kind_name(options)), "t_max", options.t_max);
  require_not_negative(schedule_name(kind_name(options)), "min_lr", options.min_lr);
}

void check_options(const CosineRestarts& options) {
  require_at_least(1, schedule_name(kind_name(options)), "t_0", options.t_0);
  require_at_least(1, schedule_name(kind_name(options)), "t_mult", options.t_mult);
  require_not_negative(schedule_name(kind_name(options)), "min_lr", options.min_lr);
}

void check_options(const OneCycle& options) {
  require_at_least(1, schedule_name(kind_name(options)), "total_steps", options.total_steps);
  if (options.max_lr) require_positive(schedule_name(kind_name(options)), "max_lr", *options.max_lr);
  require_fraction(schedule_name(kind_name(options)), "pct_start", options.pct_start);
  require(!options.three_phase || options.pct_start <= 0.5, schedule_name(kind_name(options)), "pct_start",
          "at most 0.5 with three phases", options.pct_start);
  require_fraction(schedule_name(kind_name(options)), "base_momentum", options.base_momentum);
  require_fraction(schedule_name(kind_name(options)), "max_momentum", options.max_momentum);
  require_positive(schedule_name(kind_name(options)), "div_factor", options.div_factor);
  require_positive(schedule_name(kind_name(options)), "final_div_factor", options.final_div_factor);
}

void check_options(const WarmUp& options) {
  require_at_least(1, schedule_name(kind_name(options)), "steps", options.steps);
  require_fraction(schedule_name(kind_name(options)), "start_factor", options.start_factor);
}

double rate_at(const StepDecay& options, int64_t step, double base_lr) {
  return base_lr * std::pow(options.gamma, static_cast<double>(step / options.every));
}

double rate_at(const MultiStepDecay& options, int64_t step, double base_lr) {
  const auto passed = std::count_if(options.milestones.begin(), options.milestones.end(),
                                    [step](int64_t milestone) { return milestone <= step; });
  return base_lr * std::pow(options.gamma, static_cast<double>(passed));
}

double rate_at(const ExponentialDecay& options, int64_t step, double base_lr) {
  return base_lr * std::pow(options.gamma, static_cast<double>(step));
}

double rate_at(const PolynomialDecay& options, int64_t step, double base_lr) {
  const auto total = static_cast<double>(options.total_steps);
  const auto done = static_cast<double>(std::min(options.total_steps, step));
  return base_lr * std::pow(1.0 - done / total, options.power);
}

double rate_at(const CyclicRate& options, int64_t step, double base_lr) {
  const double bottom = options.base_lr.value_or(base_lr);
  const auto length = static_cast<double>(2 * options.step_size);
  const double cycles = static_cast<double>(step) / length;
  const double x = 1.0 + cycles - std::floor(1 + cycles);
  const double height = x <= 0.5 ? x / 0.5 : (x - 1) / (0.5 - 1);
  return bottom + (options.max_lr - bottom) * height;
}

double rate_at(const CosineAnnealing& options, int64_t step, double base_lr) {
  return cosine(base_lr, options.min_lr, static_cast<double>(step), static_cast<double>(options.t_max));
}

double rate_at(const CosineRestarts& options, int64_t step, double base_lr) {
  int64_t length = options.t_0;
  if (options.t_mult == 1) {
    step %= length;
  } else {
    while (step >= length) {
      step -= length;
      length *= options.t_mult;
    }
  }
  return cosine(base_lr, options.min_lr, static_cast<double>(step), static_cast<double>(length));
}

double rate_at(const OneCycle& options, int64_t step, double base_lr) {
  const double top = options.max_lr.value_or(base_lr);
  const double start = top / options.div_factor;
  const double end = start / options.final_div_factor;
  const auto [phase, share] = place_in(options, step);
  if (phase == 0) return interpolate(options.anneal, start, top, share);
  if (phase == 1) return interpolate(options.anneal, top, options.three_phase ? start : end, share);
  return interpolate(options.anneal, start, end, share);
}

double momentum_at(const OneCycle& options, int64_t step) {
  const double top = options.max_momentum;
  const double bottom = options.base_momentum;
  const auto [phase, share] = place_in(options, step);
  if (phase == 0) return interpolate(options.anneal, top, bottom, share);
  if (phase == 1) return interpolate(options.anneal, bottom, top, share);
  return top;
}

double warm_up_factor(const WarmUp& options, int64_t step) {
  const auto done = static_cast<double>(std::min(options.steps, step));
  return options.start_factor + (1.0 - options.start_factor) * done / static_cast<double>(options.steps);
}

// --- DeepSpeed's schedules ---
//
// The order of operations is DeepSpeed's, so that rates agree to the bit. Its schedules count from -1,
// before their first step: its iteration is our step minus 1.

namespace {

// The second of the betas that OneCycle sets.
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

// The height of a step of the warm-up, from 0 to 1.
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

// The height of a step in the cycle, from 0 to 1.
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
