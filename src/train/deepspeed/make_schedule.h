#pragma once

#include <lockstep/deepspeed_config.h>
#include <lockstep/schedule.h>

#include <cstdint>
#include <optional>

namespace lockstep::deepspeed {

// The schedule that the configuration names; nullopt: none. A step is an optimizer step that was not
// skipped.
std::optional<LearningRateSchedule> make_schedule(const DeepSpeedConfig::Scheduler& config);

// The first step of the schedule: not 0 with last_batch_iteration.
int64_t first_step(const DeepSpeedConfig::Scheduler& config);

}  // namespace lockstep::deepspeed
