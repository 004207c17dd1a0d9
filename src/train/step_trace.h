#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/trace.h"

namespace lockstep::train {

// The first and the last step of "10:12", or of "10". nullopt: another text.
std::optional<std::pair<int64_t, int64_t>> parse_trace_steps(const std::string& text);

// Writes a trace of some steps of this rank (TrainConfig::trace_steps) to rank0.pt.trace.json in the run
// folder: the steps, their phases, LibTorch's operators on all threads, and the collectives. Chrome's format
// with the names of PyTorch's profiler, so that Perfetto and TensorBoard's profiler plugin
// (torch-tb-profiler) read it.
class StepTrace {
 public:
  // Empty steps: no trace.
  StepTrace(const std::string& steps, const std::filesystem::path& folder, int rank, int world_size = 1,
            std::string backend = "");
  // Training has failed: writes the steps that were recorded.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Called before a step's batches are taken, and after the step. `step` counts from 1, over resumes. A file
  // that cannot be written is a warning.
  void before(int64_t step);
  void after(int64_t step);
  bool recording() const { return operators_ != nullptr; }
  // Training has ended: writes the steps that were recorded, and warns if it was none.
  void finish();

 private:
  struct Operators;  // observes LibTorch's operators while it exists

  void stop();
  void write();

  const std::optional<std::pair<int64_t, int64_t>> steps_;
  const std::filesystem::path file_;
  const int rank_;
  const int world_size_;
  const std::string backend_;
  base::Trace::Clock::time_point step_began_;
  std::unique_ptr<Operators> operators_;  // set while steps are recorded
  bool is_written_ = false;
  int64_t first_step_ = 0;  // of those that were trained; 0: none
  int64_t last_step_ = 0;
};

}  // namespace lockstep::train
