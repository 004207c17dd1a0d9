#include "deepspeed/key.h"

namespace lockstep::deepspeed {
namespace {

using C = DeepSpeedConfig;
using Scheduler = C::Scheduler;
using SchedulerType = Scheduler::Type;

void add_warmup_keys(Section<Scheduler>& params) {
  const uint32_t rates = type_bit(SchedulerType::kWarmupLr) | type_bit(SchedulerType::kWarmupDecayLr);
  const uint32_t cosine = type_bit(SchedulerType::kWarmupCosineLr);
  params
      .honour("total_num_steps", &Scheduler::total_num_steps, "steps of the whole training; needed",
              {.range = kAtLeastOne, .types = type_bit(SchedulerType::kWarmupDecayLr) | cosine})
      .honour("warmup_min_lr", &Scheduler::warmup_min_lr, "where the warm-up begins",
              {.range = kNotNegative, .types = rates})
      .honour("warmup_max_lr", &Scheduler::warmup_max_lr, "where it ends; null: the optimizer's rate",
              {.range = kNotNegative, .types = rates})
      .honour("warmup_num_steps", &Scheduler::warmup_num_steps, "steps of the warm-up; 1 counts as 2",
              {.range = kAtLeastOne, .types = rates | cosine})
      .honour("warmup_type", &Scheduler::warmup_type, "log or linear", {.types = rates | cosine})
      .honour("warmup_min_ratio", &Scheduler::warmup_min_ratio,
              "where the warm-up begins, of the optimizer's rate", {.range = kNotNegative, .types = cosine})
      .honour("cos_min_ratio", &Scheduler::cos_min_ratio, "where the cosine ends, of the optimizer's rate",
              {.range = kNotNegative, .types = cosine});
}

void add_range_test_keys(Section<Scheduler>& params) {
  const uint32_t types = type_bit(SchedulerType::kLrRangeTest);
  params
      .honour("lr_range_test_min_lr", &Scheduler::lr_range_test_min_lr, "where the test begins",
              {.range = {.least = 0, .above = true}, .types = types})
      .honour("lr_range_test_step_size", &Scheduler::lr_range_test_step_size, "steps of an interval",
              {.range = kAtLeastOne, .types = types})
      .honour("lr_range_test_step_rate", &Scheduler::lr_range_test_step_rate, "growth in an interval",
              {.range = kNotNegative, .types = types})
      .honour("lr_range_test_staircase", &Scheduler::lr_range_test_staircase, "grow between intervals only",
              {.types = types});
}

void add_cycle_keys(Section<Scheduler>& params) {
  const uint32_t types = type_bit(SchedulerType::kOneCycle);
  const KeyRules not_negative = {.range = kNotNegative, .types = types};
  const KeyRules at_least_one = {.range = kAtLeastOne, .types = types};
  const KeyRules fraction = {.range = {.least = 0, .most = 1, .below = true}, .types = types};
  params.honour("cycle_min_lr", &Scheduler::cycle_min_lr, "at both ends of the cycle; needed", not_negative)
      .honour("cycle_max_lr", &Scheduler::cycle_max_lr, "in its middle; needed", not_negative)
      .honour("decay_lr_rate", &Scheduler::decay_lr_rate, "after the cycle", not_negative)
      .honour("cycle_first_step_size", &Scheduler::cycle_first_step_size, "steps upward", at_least_one)
      .honour("cycle_second_step_size", &Scheduler::cycle_second_step_size, "steps downward; null: as many",
              at_least_one)
      .honour("cycle_first_stair_count", &Scheduler::cycle_first_stair_count, "stairs upward; 0: a slope",
              not_negative)
      .honour("cycle_second_stair_count", &Scheduler::cycle_second_stair_count,
              "stairs downward; null: as many", not_negative)
      .honour("decay_step_size", &Scheduler::decay_step_size, "steps of the decay; 0: none", not_negative)
      .honour("cycle_momentum", &Scheduler::cycle_momentum, "momentum goes the other way", {.types = types})
      .honour("cycle_min_mom", &Scheduler::cycle_min_mom, "least momentum", fraction)
      .honour("cycle_max_mom", &Scheduler::cycle_max_mom, "largest momentum", fraction)
      .honour("decay_mom_rate", &Scheduler::decay_mom_rate, "of the momentum, after the cycle", not_negative);
}

}  // namespace

void add_scheduler_keys(std::vector<Key>& keys) {
  const auto get = [](auto& c) -> auto& { return c.scheduler; };
  Section<Scheduler>(keys, "scheduler", get)
      .honour("type", &Scheduler::type, "its name; without one the rate is the optimizer's");
  Section<Scheduler> params(keys, "scheduler.params", get);
  add_warmup_keys(params);
  add_range_test_keys(params);
  add_cycle_keys(params);
  params.honour("last_batch_iteration", &Scheduler::last_batch_iteration,
                "steps that are done already, less one", {.range = {.least = -1}});
}

void set_type_defaults(Scheduler& scheduler) {
  if (scheduler.type == SchedulerType::kWarmupDecayLr) scheduler.warmup_max_lr = 1e-3;
}

}  // namespace lockstep::deepspeed
