#include "train/deepspeed/make_schedule.h"

#include <lockstep/schedule.h>

namespace lockstep::deepspeed {
namespace {

using SchedulerConfig = DeepSpeedConfig::Scheduler;

WarmupType warmup_of(const SchedulerConfig& config) {
  return config.warmup_type == SchedulerConfig::Warmup::kLog ? WarmupType::kLog : WarmupType::kLinear;
}

LearningRateSchedule make_one_cycle(const SchedulerConfig& config) {
  return deepspeed_one_cycle({.cycle_min_lr = config.cycle_min_lr,
                              .cycle_max_lr = config.cycle_max_lr,
                              .decay_lr_rate = config.decay_lr_rate,
                              .cycle_first_step_size = config.cycle_first_step_size,
                              .cycle_second_step_size = config.cycle_second_step_size,
                              .cycle_first_stair_count = config.cycle_first_stair_count,
                              .cycle_second_stair_count = config.cycle_second_stair_count,
                              .decay_step_size = config.decay_step_size,
                              .cycle_momentum = config.cycle_momentum,
                              .cycle_min_mom = config.cycle_min_mom,
                              .cycle_max_mom = config.cycle_max_mom,
                              .decay_mom_rate = config.decay_mom_rate});
}

}  // namespace

std::optional<LearningRateSchedule> make_schedule(const SchedulerConfig& config) {
  using Type = SchedulerConfig::Type;
  switch (config.type) {
    case Type::kWarmupLr:
      return warmup_lr({.warmup_min_lr = config.warmup_min_lr,
                        .warmup_max_lr = config.warmup_max_lr,
                        .warmup_num_steps = config.warmup_num_steps,
                        .warmup_type = warmup_of(config)});
    case Type::kWarmupDecayLr:
      return warmup_decay_lr({.total_num_steps = config.total_num_steps,
                              .warmup_min_lr = config.warmup_min_lr,
                              .warmup_max_lr = config.warmup_max_lr.value_or(WarmupDecayLr{}.warmup_max_lr),
                              .warmup_num_steps = config.warmup_num_steps,
                              .warmup_type = warmup_of(config)});
    case Type::kWarmupCosineLr:
      return warmup_cosine_lr({.total_num_steps = config.total_num_steps,
                               .warmup_min_ratio = config.warmup_min_ratio,
                               .warmup_num_steps = config.warmup_num_steps,
                               .cos_min_ratio = config.cos_min_ratio,
                               .warmup_type = warmup_of(config)});
    case Type::kLrRangeTest:
      return lr_range_test({.lr_range_test_min_lr = config.lr_range_test_min_lr,
                            .lr_range_test_step_size = config.lr_range_test_step_size,
                            .lr_range_test_step_rate = config.lr_range_test_step_rate,
                            .lr_range_test_staircase = config.lr_range_test_staircase});
    case Type::kOneCycle: return make_one_cycle(config);
    case Type::kNone: break;
  }
  return std::nullopt;
}

int64_t first_step(const SchedulerConfig& config) { return config.last_batch_iteration + 1; }

}  // namespace lockstep::deepspeed
