#pragma once

#include <lockstep/learning_rate.h>

#include <string_view>

namespace lockstep::optim {

struct ConstantRate {};

// What a kind of schedule is made of: its name, its fields by name, what they may be,
// and the rate of a step.

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

}  // namespace lockstep::optim
