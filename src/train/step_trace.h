#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::train {

// The first and the last step of "10:12", or of "10". nullopt: another text.
std::optional<std::pair<int64_t, int64_t>> parse_trace_steps(const std::string& text);

// Writes a trace of some steps of this rank (TrainConfig::trace_steps) to trace_rank0.json in the run folder,
// in Chrome's format: the phases of the step, LibTorch's operators on all threads, and the collectives.
class StepTrace {
 public:
  // Empty steps: no trace.
  StepTrace(const std::string& steps, std::filesystem::path folder, int rank);
  // A trace that is being recorded is dropped.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Called before a step's batches are taken, and after the step. `step` counts from 1, over resumes. A file
  // that cannot be written is a warning.
  void before(int64_t step);
  void after(int64_t step);
  bool recording() const { return operators_ != nullptr; }

 private:
  struct Operators;  // observes LibTorch's operators while it exists

  void write();

  const std::optional<std::pair<int64_t, int64_t>> steps_;
  const std::filesystem::path file_;
  const int rank_;
  std::unique_ptr<Operators> operators_;  // set while steps are recorded
};

}  // namespace lockstep::train
