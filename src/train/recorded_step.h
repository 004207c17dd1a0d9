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
  std::string backend;              // of the group, if it has several ranks
  bool has_own_step = false;        // set_optimize_step() was called
  std::string optimizer_objection;  // of FusedStep, or ""
};

// The first reason why cuda_graph cannot work, with the option that changes it; "": there is none.
// Reasons that no option changes come first, so that no user changes an option without effect.
std::string objection_to_recording(const TrainConfig& config, const RecordingFacts& facts);

}  // namespace lockstep::train

namespace lockstep::comm {
class DeviceGraph;
}

namespace lockstep::train {

// Runs a step normally a few times, then records its kernels and replays them: the host starts a
// complete step with one call. Batches of other shapes than the recorded ones run normally. One thread.
class RecordedStep {
 public:
  // Starts kernels, waits for none, and starts the same kernels every time.
  using Body = std::function<LossResult(StepBatches&)>;

  RecordedStep();
  ~RecordedStep();

  // The next call overwrites the returned tensors. ConfigError: the body does something that cannot be
  // recorded.
  LossResult run(StepBatches& batches, const Body& body);
  // Whether the last step was a replay.
  bool replayed() const { return replayed_; }
  // Drops the record: the next step runs normally.
  void forget();

 private:
  void record(StepBatches& batches, const Body& body);

  std::unique_ptr<comm::DeviceGraph> graph_;  // null: nothing is recorded
  std::vector<Batch> inputs_;                 // tensors that the recorded kernels read
  std::vector<int64_t> kind_;                 // StepBatches::kind() of the recorded batches
  LossResult outcome_{at::Tensor()};          // tensors that the recorded kernels write
  bool replayed_ = false;
  int64_t steps_before_ = 0;  // normal runs with batches of kind_
};

}  // namespace lockstep::train
