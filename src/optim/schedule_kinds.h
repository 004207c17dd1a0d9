#pragma once

#include <lockstep/schedule.h>

#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>

namespace lockstep::optim {

struct ConstantRate {};

// A kind of schedule consists of its name, its fields by name, the check of their values and the rate of
// a step.

inline std::string_view kind_name(const ConstantRate&) { return "constant"; }
inline std::string_view kind_name(const StepDecay&) { return "step"; }
inline std::string_view kind_name(const MultiStepDecay&) { return "multi_step"; }
inline std::string_view kind_name(const ExponentialDecay&) { return "exponential"; }
inline std::string_view kind_name(const PolynomialDecay&) { return "polynomial"; }
inline std::string_view kind_name(const CyclicRate&) { return "cyclic"; }
inline std::string_view kind_name(const CosineAnnealing&) { return "cosine"; }
inline std::string_view kind_name(const CosineRestarts&) { return "cosine_restarts"; }
inline std::string_view kind_name(const OneCycle&) { return "one_cycle"; }
inline std::string_view kind_name(const WarmUp&) { return "warm_up"; }

// Calls field(name, member) for each; Options may be const.
template <typename Options, typename Field>
void for_each_field(Options& options, Field&& field) {
  using T = std::remove_const_t<Options>;
  if constexpr (std::is_same_v<T, StepDecay>) {
    field("every", options.every);
    field("gamma", options.gamma);
  } else if constexpr (std::is_same_v<T, MultiStepDecay>) {
    field("milestones", options.milestones);
    field("gamma", options.gamma);
  } else if constexpr (std::is_same_v<T, ExponentialDecay>) {
    field("gamma", options.gamma);
  } else if constexpr (std::is_same_v<T, PolynomialDecay>) {
    field("total_steps", options.total_steps);
    field("power", options.power);
  } else if constexpr (std::is_same_v<T, CyclicRate>) {
    field("base_lr", options.base_lr);
    field("max_lr", options.max_lr);
    field("step_size", options.step_size);
  } else if constexpr (std::is_same_v<T, CosineAnnealing>) {
    field("t_max", options.t_max);
    field("min_lr", options.min_lr);
  } else if constexpr (std::is_same_v<T, CosineRestarts>) {
    field("t_0", options.t_0);
    field("t_mult", options.t_mult);
    field("min_lr", options.min_lr);
  } else if constexpr (std::is_same_v<T, OneCycle>) {
    field("total_steps", options.total_steps);
    field("max_lr", options.max_lr);
    field("pct_start", options.pct_start);
    field("anneal", options.anneal);
    field("cycle_momentum", options.cycle_momentum);
    field("base_momentum", options.base_momentum);
    field("max_momentum", options.max_momentum);
    field("div_factor", options.div_factor);
    field("final_div_factor", options.final_div_factor);
    field("three_phase", options.three_phase);
  } else if constexpr (std::is_same_v<T, WarmUp>) {
    field("steps", options.steps);
    field("start_factor", options.start_factor);
  }
}

inline void check_options(const ConstantRate&) {}
void check_options(const StepDecay& options);
void check_options(const MultiStepDecay& options);
void check_options(const ExponentialDecay& options);
void check_options(const PolynomialDecay& options);
void check_options(const CyclicRate& options);
void check_options(const CosineAnnealing& options);
void check_options(const CosineRestarts& options);
void check_options(const OneCycle& options);
void check_options(const WarmUp& options);

inline double rate_at(const ConstantRate&, int64_t, double base_lr) { return base_lr; }
double rate_at(const StepDecay& options, int64_t step, double base_lr);
double rate_at(const MultiStepDecay& options, int64_t step, double base_lr);
double rate_at(const ExponentialDecay& options, int64_t step, double base_lr);
double rate_at(const PolynomialDecay& options, int64_t step, double base_lr);
double rate_at(const CyclicRate& options, int64_t step, double base_lr);
double rate_at(const CosineAnnealing& options, int64_t step, double base_lr);
double rate_at(const CosineRestarts& options, int64_t step, double base_lr);
double rate_at(const OneCycle& options, int64_t step, double base_lr);

double momentum_at(const OneCycle& options, int64_t step);
// The factor of a step inside the warm-up.
double warm_up_factor(const WarmUp& options, int64_t step);

// --- DeepSpeed's kinds ---

inline std::string_view kind_name(const WarmupLr&) { return "WarmupLR"; }
inline std::string_view kind_name(const WarmupDecayLr&) { return "WarmupDecayLR"; }
inline std::string_view kind_name(const WarmupCosineLr&) { return "WarmupCosineLR"; }
inline std::string_view kind_name(const LrRangeTest&) { return "LRRangeTest"; }
inline std::string_view kind_name(const DeepSpeedOneCycle&) { return "OneCycle"; }

template <typename T, typename... Us>
concept OneOf = (std::same_as<std::remove_const_t<T>, Us> || ...);
template <typename T>
concept DeepSpeedKind = OneOf<T, WarmupLr, WarmupDecayLr, WarmupCosineLr, LrRangeTest, DeepSpeedOneCycle>;

template <DeepSpeedKind Options, typename Field>
void for_each_field(Options& options, Field&& field) {
  if constexpr (OneOf<Options, WarmupLr, WarmupDecayLr, WarmupCosineLr>) {
    if constexpr (!OneOf<Options, WarmupLr>) field("total_num_steps", options.total_num_steps);
    if constexpr (OneOf<Options, WarmupCosineLr>) {
      field("warmup_min_ratio", options.warmup_min_ratio);
      field("cos_min_ratio", options.cos_min_ratio);
    } else {
      field("warmup_min_lr", options.warmup_min_lr);
      field("warmup_max_lr", options.warmup_max_lr);
    }
    field("warmup_num_steps", options.warmup_num_steps);
    field("warmup_type", options.warmup_type);
  } else if constexpr (OneOf<Options, LrRangeTest>) {
    field("lr_range_test_min_lr", options.lr_range_test_min_lr);
    field("lr_range_test_step_size", options.lr_range_test_step_size);
    field("lr_range_test_step_rate", options.lr_range_test_step_rate);
    field("lr_range_test_staircase", options.lr_range_test_staircase);
  } else {
    field("cycle_min_lr", options.cycle_min_lr);
    field("cycle_max_lr", options.cycle_max_lr);
    field("decay_lr_rate", options.decay_lr_rate);
    field("cycle_first_step_size", options.cycle_first_step_size);
    field("cycle_second_step_size", options.cycle_second_step_size);
    field("cycle_first_stair_count", options.cycle_first_stair_count);
    field("cycle_second_stair_count", options.cycle_second_stair_count);
    field("decay_step_size", options.decay_step_size);
    field("cycle_momentum", options.cycle_momentum);
    field("cycle_min_mom", options.cycle_min_mom);
    field("cycle_max_mom", options.cycle_max_mom);
    field("decay_mom_rate", options.decay_mom_rate);
  }
}

void check_options(const WarmupLr& options);
void check_options(const WarmupDecayLr& options);
void check_options(const WarmupCosineLr& options);
void check_options(const LrRangeTest& options);
void check_options(const DeepSpeedOneCycle& options);

double rate_at(const WarmupLr& options, int64_t step, double base_lr);
double rate_at(const WarmupDecayLr& options, int64_t step, double base_lr);
double rate_at(const WarmupCosineLr& options, int64_t step, double base_lr);
double rate_at(const LrRangeTest& options, int64_t step, double base_lr);
double rate_at(const DeepSpeedOneCycle& options, int64_t step, double base_lr);

std::pair<double, double> betas_at(const DeepSpeedOneCycle& options, int64_t step);

}  // namespace lockstep::optim
