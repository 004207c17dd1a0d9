#pragma once

#include <c10/core/Device.h>
#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/trainer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/step.h"

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

namespace lockstep::comm {
class DeviceGraph;
}

namespace lockstep::train {

// Runs a step as it is a few times, then records its kernels and replays them: the host
// starts a whole step with one call. Batches of other shapes than the recorded ones run
// as they are. One thread.
class RecordedStep {
 public:
  // Starts kernels and waits for none; gives the same tensors' worth of work every time.
  using Body = std::function<LossResult(StepBatches&)>;

  RecordedStep();
  ~RecordedStep();

  // The tensors that it returns are overwritten by the next call. ConfigError: the body
  // does something that cannot be recorded.
  LossResult run(StepBatches& batches, const Body& body);
  // The next step runs as it is again.
  void forget();

 private:
  void record(StepBatches& batches, const Body& body);

  std::unique_ptr<comm::DeviceGraph> graph_;  // null: nothing is recorded
  std::vector<Batch> inputs_;                 // what the recorded kernels read
  std::vector<int64_t> kind_;                 // of the batches that they are for
  LossResult outcome_{at::Tensor()};          // and what they write
  int64_t steps_before_ = 0;                  // run as they are, of kind_
};

}  // namespace lockstep::train
