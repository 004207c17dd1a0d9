#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <lockstep/deepspeed_config.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::deepspeed {

// Arithmetic of one operation.
struct Cost {
  int64_t flops = 0;  // floating-point operations; two for a multiply-accumulate
  int64_t macs = 0;   // multiply-accumulates of matrix products, convolutions and attention

  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    macs += other.macs;
    return *this;
  }
};

// Of an ATen operator ("aten::linear") with these inputs, by DeepSpeed's rules: matrix
// products exactly, norms as five operations an element, activations as one. Nothing for an
// operator that is not counted (views, copies, embeddings, dropout), or is counted by what
// it calls.
std::optional<Cost> cost_of(std::string_view op, c10::ArrayRef<const c10::IValue> inputs);

// Told of the operations of a thread, one after the other.
class OperationListener {
 public:
  virtual ~OperationListener() = default;
  // The inputs are there for this call only.
  virtual void began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs) = 0;
  virtual void ended(std::chrono::nanoseconds time) = 0;
};

// While it lives, tells of the counted operations (cost_of) of the thread that made it; what
// they call inside is theirs. One at a time in a thread. Each operation is waited for on
// the device, so that its time is its own.
class OperationRecorder {
 public:
  // The listener outlives it.
  OperationRecorder(c10::Device device, OperationListener& listener);
  ~OperationRecorder();
  OperationRecorder(const OperationRecorder&) = delete;
  OperationRecorder& operator=(const OperationRecorder&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace lockstep::deepspeed

namespace torch::nn {
class Module;
}

namespace lockstep::deepspeed {

// What the forwards of a model cost, by module. C++ modules cannot be asked when they run, so
// an operation is counted for the module that holds a parameter it uses, and for those around
// it; one that uses none (an activation, attention) for the model alone.
class ModelProfile final : public OperationListener {
 public:
  struct Part {
    std::string name;  // "layer1.0.conv"; empty for the model
    std::string type;  // "Conv2d"
    int depth = 0;
    int64_t parameters = 0;  // as all the following, with those of its children
    Cost cost = {};
    std::chrono::nanoseconds time = {};
  };

  // Before the model is divided: afterwards a rank has parts of its parameters only. The
  // module's parameters outlive it.
  explicit ModelProfile(const torch::nn::Module& model);

  void began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs) override;
  void ended(std::chrono::nanoseconds time) override;
  // Forgets costs and times.
  void clear();

  // The model, then its modules in the order they were registered, children after parents.
  const std::vector<Part>& parts() const { return parts_; }
  const Part& model() const { return parts_.front(); }

 private:
  struct Owned {
    at::Tensor parameter;
    size_t part;
  };

  size_t add(const torch::nn::Module& module, std::string name, int depth, size_t parent);
  size_t owner_of(c10::ArrayRef<const c10::IValue> inputs) const;

  std::vector<Part> parts_;
  std::vector<size_t> parents_;  // of each part; the model's is itself
  std::vector<Owned> owned_;
  size_t running_ = 0;  // the part whose operation runs, and what that costs
  Cost running_cost_ = {};
};

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

}  // namespace lockstep::deepspeed
