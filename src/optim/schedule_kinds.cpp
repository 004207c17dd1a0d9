#include "optim/schedule_kinds.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/argument.h"

// The order of the operations is PyTorch's, so that the closed forms agree to the bit.

namespace lockstep::optim {
namespace {

double cosine(double top, double bottom, double done, double length) {
  return bottom + (top - bottom) * (1 + std::cos(std::numbers::pi * done / length)) / 2;
}

double interpolate(OneCycle::Anneal anneal, double start, double end, double share) {
  if (anneal == OneCycle::Anneal::kLinear) return (end - start) * share + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
}

// Where a step of a one-cycle schedule is: in which phase, and how far through it.
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

}  // namespace lockstep::optim
