#pragma once

#include <lockstep/deepspeed_config.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/model_profile.h"

namespace lockstep::engine {

// One step, as it was profiled.
struct ProfiledStep {
  int64_t step = 0;  // steps before it
  int ranks = 1;
  DeepSpeedConfig::BatchTriple batch = {};
  // Of all micro batches of the step.
  std::chrono::nanoseconds forward = {};
  std::chrono::nanoseconds backward = {};
  std::chrono::nanoseconds update = {};
};

// The flops profiler's page: a summary, the modules that cost most at each depth, and with
// `detailed` the tree. `profile` is of all micro batches of the step; the page shows one.
std::string profile_text(const ProfiledStep& step, const ModelProfile& profile,
                         const DeepSpeedConfig::FlopsProfiler& options);

// "1.25 MFLOPS", "640 MACs", "3.10 K".
std::string count_text(double count, std::string_view unit);

}  // namespace lockstep::engine
