#pragma once

#include <lockstep/deepspeed_schedules.h>

#include <concepts>
#include <string_view>
#include <type_traits>
#include <utility>

namespace lockstep::optim {

// DeepSpeed's kinds of schedule, made of the same parts as those of schedule_kinds.h.

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
