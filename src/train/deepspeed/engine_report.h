#pragma once

#include <c10/core/Device.h>
#include <lockstep/communicator.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/sharded.h>
#include <lockstep/track.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator_internal.h"
#include "train/deepspeed/flops_profiler.h"

namespace lockstep::deepspeed {

// comms_logger of a configuration: times of the collectives of an engine's group, by
// operation and size. Every call is kept (4 bytes), for means without the extremes. Told by
// any thread.
class CommsLogger final : public comm::CallObserver {
 public:
  // `ranks`: of the group; bandwidths depend on it. `speaks`: whether it logs.
  CommsLogger(const DeepSpeedConfig::CommsLogger& options, int ranks, bool speaks);

  // With comms_logger.debug calls are told apart by the phase of the step they are from.
  void enter(const char* phase);
  void called(const comm::Call& call) override;

  // A line for each operation and size.
  void log_summary() const;
  // The same by how long the last rank let the others wait: what a call took longer here
  // than where it took least. Collective.
  void log_stragglers(const Communicator& group) const;

 private:
  struct Record {
    std::vector<float> milliseconds;
    std::string_view operation;
  };
  using Records = std::map<std::pair<std::string, int64_t>, Record>;  // by name and bytes

  Records records() const;
  bool is_wanted(std::string_view operation) const;

  const DeepSpeedConfig::CommsLogger options_;
  const int ranks_;
  const bool speaks_;
  mutable std::mutex mutex_;
  const char* phase_ = "outside";
  Records records_;
};

enum class StepPhase { kForward, kBackward, kReduce, kStep };

// What is known after a step; the functions may wait for the device and are called where
// somebody wants to know.
struct StepFacts {
  int64_t step = 0;
  int64_t skipped = 0;
  int64_t samples = 0;  // of all ranks, in all
  DeepSpeedConfig::BatchTriple batch = {};
  std::vector<double> rates = {};
  std::optional<double> loss_scale = {};
  std::function<double()> norm = {};
  std::function<double()> loss = {};  // this rank's mean over the step
  std::function<std::optional<ShardedModel::Memory>()> memory = {};
};

// The lines and the monitors that a configuration asks for: steps_per_print, throughput,
// wall_clock_breakdown, memory_breakdown, flops_profiler, comms_logger, tensorboard,
// csv_monitor. Rank 0 speaks and writes; the others measure as it does.
class EngineReport {
 public:
  // Opens the monitors on rank 0. The model is not divided yet. ConfigError: a folder cannot
  // be written.
  EngineReport(const DeepSpeedConfig& config, const Communicator& group, const torch::nn::Module& model,
               c10::Device device);
  // Says what its collectives took, where they were measured.
  ~EngineReport();
  EngineReport(const EngineReport&) = delete;
  EngineReport& operator=(const EngineReport&) = delete;

  // What "auto" became, and with dump_state the whole configuration: once, at the start.
  // `batch` has zeros where only the first batch will tell.
  void say_configuration(const DeepSpeedConfig::BatchTriple& batch) const;

  bool has_monitors() const { return !monitors_.empty(); }
  // From here on collectives are measured, where the configuration says so.
  void watch_collectives();
  void log_comms_summary(bool show_straggler) const;

  // After the begin() of a forward that is trained on; `step` as FlopsProfiler's.
  void expect_training(int64_t step);
  void begin(StepPhase phase);
  void end(StepPhase phase);
  void add(StepPhase phase, std::chrono::nanoseconds time);
  void after_step(const StepFacts& facts);
  // Steps and samples count from 0 again.
  void restart() {
    times_ = {};
    first_end_.reset();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point now() const;
  bool prints_after(int64_t step) const;
  void print_progress(const StepFacts& facts);
  void print_times(const StepFacts& facts);
  void write_monitors(const StepFacts& facts);
  void print_profile(const StepFacts& facts);
  double milliseconds(StepPhase phase) const;
  bool measures_phases() const { return config_.wall_clock_breakdown || config_.flops_profiler.enabled; }

  const DeepSpeedConfig& config_;
  const Communicator group_;
  const bool is_main_;
  const c10::Device device_;
  TrackerSet monitors_;                    // on rank 0; what they cannot write ends no training
  std::optional<FlopsProfiler> profiler_;  // on rank 0
  std::shared_ptr<CommsLogger> comms_;
  std::array<std::chrono::nanoseconds, 4> times_{};  // of this step, by phase
  Clock::time_point phase_began_;
  // Throughput: since the end of the first step, and since the last line.
  std::optional<Clock::time_point> first_end_;
  int64_t first_samples_ = 0;
  Clock::time_point last_line_;
  int64_t last_samples_ = 0;
};

}  // namespace lockstep::deepspeed
