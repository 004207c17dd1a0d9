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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "comm/communicator_internal.h"
#include "train/deepspeed/flops_profiler.h"

namespace lockstep::deepspeed {

// comms_logger of a configuration: times of the collectives of an engine's group, by operation and
// size. Keeps every call (4 bytes), for means without the extremes. Thread-safe.
class CommsLogger final : public comm::CallObserver {
 public:
  // `ranks` is the size of the group, on which bandwidths depend. `speaks`: whether it logs.
  CommsLogger(const DeepSpeedConfig::CommsLogger& options, int ranks, bool speaks);

  // With comms_logger.debug calls are grouped by the phase of the step they belong to.
  void enter(const char* phase);
  void called(const comm::Call& call) override;

  // Logs a line for each operation and size.
  void log_summary() const;
  // The same with the time that ranks waited for the last rank: the time of a call here minus its
  // shortest time on any rank. Collective.
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
  mutable base::Mutex mutex_;
  const char* phase_ LOCKSTEP_GUARDED_BY(mutex_) = "outside";
  Records records_ LOCKSTEP_GUARDED_BY(mutex_);
};

enum class StepPhase { kForward, kBackward, kReduce, kStep };

// Facts after a step. The functions may wait for the device, so they are called only if their result is
// needed.
struct StepFacts {
  int64_t step = 0;
  int64_t skipped = 0;
  int64_t samples = 0;  // of all ranks, in total
  DeepSpeedConfig::BatchTriple batch = {};
  std::vector<double> rates = {};
  std::optional<double> loss_scale = {};
  std::function<double()> norm = {};
  std::function<double()> loss = {};  // this rank's mean over the step
  std::function<std::optional<ShardedModel::Memory>()> memory = {};
};

// The lines and monitors that a configuration asks for: steps_per_print, throughput,
// wall_clock_breakdown, memory_breakdown, flops_profiler, comms_logger, tensorboard, csv_monitor. Rank
// 0 prints and writes; the other ranks measure alike.
class EngineReport {
 public:
  // Opens the monitors on rank 0. Make it before the model is sharded. ConfigError: a folder cannot be
  // written.
  EngineReport(const DeepSpeedConfig& config, const Communicator& group, const torch::nn::Module& model,
               c10::Device device);
  // Logs the times of the collectives, if they were measured.
  ~EngineReport();
  EngineReport(const EngineReport&) = delete;
  EngineReport& operator=(const EngineReport&) = delete;

  // Prints the values that replaced "auto", and with dump_state the complete configuration; once, at
  // the start. `batch` has zeros for sizes that only the first batch shows.
  void say_configuration(const DeepSpeedConfig::BatchTriple& batch) const;

  bool has_monitors() const { return !monitors_.empty(); }
  // Starts to measure collectives, if the configuration asks for it.
  void watch_collectives();
  void log_comms_summary(bool show_straggler) const;

  // Called after begin() of a forward of the training; `step` as in FlopsProfiler.
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
  TrackerSet monitors_;                    // on rank 0; a failed write does not end the training
  std::optional<FlopsProfiler> profiler_;  // on rank 0
  std::shared_ptr<CommsLogger> comms_;
  std::array<std::chrono::nanoseconds, 4> times_{};  // of this step, by phase
  Clock::time_point phase_began_;
  // For the throughput since the end of the first step, and since the last line.
  std::optional<Clock::time_point> first_end_;
  int64_t first_samples_ = 0;
  Clock::time_point last_line_;
  int64_t last_samples_ = 0;
};

}  // namespace lockstep::deepspeed
