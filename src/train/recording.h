#pragma once

#include <c10/core/Device.h>
#include <lockstep/train_config.h>

#include <string>

namespace lockstep::train {

// What decides whether a step can be recorded as a CUDA graph.
struct RecordingFacts {
  c10::Device device{c10::DeviceType::CPU};
  int num_ranks = 1;
  std::string backend;              // of the group, where it has several ranks
  bool has_own_step = false;        // set_optimize_step() was called
  std::string optimizer_objection;  // of FusedStep, or ""
};

// The one thing that keeps cuda_graph from working, and the option that changes it; "": nothing.
// What no option changes comes first, so that nobody changes two things in vain.
std::string objection_to_recording(const TrainConfig& config, const RecordingFacts& facts);

}  // namespace lockstep::train
