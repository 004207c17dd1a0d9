#pragma once

#include <lockstep/learning_rate.h>

#include <cstdint>
#include <optional>

namespace lockstep {

// DeepSpeed's schedules, by its names and with its arithmetic: what
// deepspeed.runtime.lr_schedules sets after so many of its step() is at(step), to the bit.
// Their kinds in JSON are DeepSpeed's types, and the fields its parameters; where DeepSpeed
// takes a list with one value a parameter group, one value serves all groups here.
//
// A step is an optimizer step; one that is skipped because of an overflow does not count.

// How a rate rises to its top: by ln(step) / ln(steps), or in even steps.
enum class WarmupType { kLog, kLinear };  // "log", "linear"

// "WarmupLR": up, then constant.
struct WarmupLr {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  // nullopt: the group's own rate
  int64_t warmup_num_steps = 1000;           // 1 counts as 2
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_lr(const WarmupLr& options);

// "WarmupDecayLR": up, then in even steps down to warmup_min_lr at total_num_steps.
struct WarmupDecayLr {
  int64_t total_num_steps = 0;  // must be given
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_decay_lr(const WarmupDecayLr& options);

// "WarmupCosineLR": up, then down a cosine until total_num_steps, all as ratios of the group's
// own rate. The rate of the very first step is 0, whatever warmup_min_ratio says.
struct WarmupCosineLr {
  int64_t total_num_steps = 0;  // must be given
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 0.0001;
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_cosine_lr(const WarmupCosineLr& options);

// "LRRangeTest": up without end.
struct LrRangeTest {
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};
LearningRateSchedule lr_range_test(const LrRangeTest& options);

// "OneCycle": up, down, then decay. With cycle_momentum beta1 goes the other way round and
// beta2 is 0.99; an optimizer without betas keeps its momentum.
struct DeepSpeedOneCycle {
  std::optional<double> cycle_min_lr = {};  // both must be given
  std::optional<double> cycle_max_lr = {};
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = {};  // nullopt: as the first
  int64_t cycle_first_stair_count = 0;                 // 0: no stairs
  std::optional<int64_t> cycle_second_stair_count = {};
  int64_t decay_step_size = 0;  // 0: no decay
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};
LearningRateSchedule deepspeed_one_cycle(const DeepSpeedOneCycle& options);

}  // namespace lockstep
