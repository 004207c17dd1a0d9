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

// The cost of an ATen operator ("aten::linear") with these inputs, by DeepSpeed's rules: matrix
// products exactly, norms as five operations for each element, activations as one. nullopt: the
// operator is not counted (views, copies, embeddings, dropout), or the operators that it calls are
// counted.
std::optional<Cost> cost_of(std::string_view op, c10::ArrayRef<const c10::IValue> inputs);

// Receives the operations of a thread, one after the other.
class OperationListener {
 public:
  virtual ~OperationListener() = default;
  // `module` is the innermost scope of the user (RECORD_USER_SCOPE) around the operation, which exported
  // models name after the module of Python; empty: none. All arguments are valid only during this call.
  virtual void began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs, std::string_view module) = 0;
  virtual void ended(std::chrono::nanoseconds time) = 0;
};

// While it exists, passes the counted operations (cost_of) of the thread that made it to a listener.
// Operations that they call are included in them. One at a time in a thread. Waits for the device after
// each operation, so that its time is its own.
class OperationRecorder {
 public:
  // The listener must outlive it.
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

// The cost of a model's forwards, by module and the modules around it. C++ modules do not report when they
// run, so an operation counts for the module that holds a parameter it uses, and one without parameters (an
// activation, attention) only for the model. In an exported model each counts for the module of Python that
// ran it, if that is not the model itself.
class ModelProfile final : public OperationListener {
 public:
  struct Part {
    std::string name;  // "layer1.0.conv"; empty for the model
    std::string type;  // "Conv2d"
    int depth = 0;
    int64_t parameters = 0;  // this and the following fields include its children
    Cost cost = {};
    std::chrono::nanoseconds time = {};
  };

  // Make it before the model is sharded, while the rank has complete parameters. The module's
  // parameters must outlive it.
  explicit ModelProfile(const torch::nn::Module& model);

  void began(const Cost& cost, c10::ArrayRef<const c10::IValue> inputs, std::string_view module) override;
  void ended(std::chrono::nanoseconds time) override;
  // Clears costs and times.
  void clear();

  // The model, then its modules in the order of registration, children after parents.
  const std::vector<Part>& parts() const { return parts_; }
  const Part& model() const { return parts_.front(); }

 private:
  struct Owned {
    at::Tensor parameter;
    size_t part;
  };

  size_t add(const torch::nn::Module& module, std::string name, int depth, size_t parent);
  std::optional<size_t> part_named(std::string_view module) const;
  size_t owner_of(c10::ArrayRef<const c10::IValue> inputs) const;

  std::vector<Part> parts_;
  std::vector<size_t> parents_;  // of each part; the model's is itself
  std::vector<Owned> owned_;
  size_t running_ = 0;  // the part of the running operation, and its cost
  Cost running_cost_ = {};
};

// A profiled step.
struct ProfiledStep {
  int64_t step = 0;  // number of steps before it
  int ranks = 1;
  DeepSpeedConfig::BatchTriple batch = {};
  // Totals of all micro batches of the step.
  std::chrono::nanoseconds forward = {};
  std::chrono::nanoseconds backward = {};
  std::chrono::nanoseconds update = {};
};

// The page of the flops profiler: a summary, the most expensive modules at each depth, and with
// `detailed` the tree. `profile` has all micro batches of the step; the page shows one.
std::string profile_text(const ProfiledStep& step, const ModelProfile& profile,
                         const DeepSpeedConfig::FlopsProfiler& options);

// "1.25 MFLOPS", "640 MACs", "3.10 K".
std::string count_text(double count, std::string_view unit);

// flops_profiler of a configuration: counts the forwards of one step, and prints their cost.
class FlopsProfiler {
 public:
  // Make it before the model is sharded, as ModelProfile.
  FlopsProfiler(const DeepSpeedConfig::FlopsProfiler& options, const torch::nn::Module& model,
                c10::Device device);

  // `step` is the number of steps before this one. If it is the step to profile, counts in this thread
  // until end_forward().
  void begin_forward(int64_t step);
  void end_forward() { recorder_.reset(); }
  // Prints the page if this is the step, to the file or to standard output. If the file cannot be
  // written, a warning reports it and training continues.
  void after_step(const ProfiledStep& step);

 private:
  const DeepSpeedConfig::FlopsProfiler options_;
  const c10::Device device_;
  ModelProfile profile_;
  std::optional<OperationRecorder> recorder_;
};

}  // namespace lockstep::deepspeed
