#pragma once

#include <c10/core/Device.h>
#include <lockstep/deepspeed_config.h>

#include <optional>

#include "engine/model_profile.h"
#include "engine/operation_recorder.h"
#include "engine/profile_text.h"

namespace lockstep::engine {

// flops_profiler of a configuration: counts the forwards of one step, and says what they cost.
class FlopsProfiler {
 public:
  // Before the model is divided; as ModelProfile.
  FlopsProfiler(const DeepSpeedConfig::FlopsProfiler& options, const torch::nn::Module& model,
                c10::Device device);

  // `step`: how many there were before. Counts where it is the one to profile, in this thread
  // until end_forward().
  void begin_forward(int64_t step);
  void end_forward() { recorder_.reset(); }
  // Prints the page where this is the step: to the file, or to standard output. A file that
  // cannot be written is a warning: training goes on.
  void after_step(const ProfiledStep& step);

 private:
  const DeepSpeedConfig::FlopsProfiler options_;
  const c10::Device device_;
  ModelProfile profile_;
  std::optional<OperationRecorder> recorder_;
};

}  // namespace lockstep::engine
