#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

// The step of an optimizer in a few kernels for all parameters together, instead of a few for each. It
// uses the optimizer's options and state, so that schedules and checkpoints see no difference. The
// results equal the optimizer's up to rounding.
//
//   fused->prepare();
//   fused->launch(found_inf);
//   fused->count();
//
// One thread at a time. The optimizer outlives it, and no state may be loaded into the optimizer
// meanwhile.
class FusedStep {
 public:
  // For SGD, Adam and AdamW. Null: another class, or an option that the kernels do not have (dampening).
  static std::unique_ptr<FusedStep> make(torch::optim::Optimizer& optimizer);
  // Why make() returns null, and what to change; empty: it does not return null.
  static std::string objection(const torch::optim::Optimizer& optimizer);
  virtual ~FusedStep() = default;

  // Copies learning rates that have changed to the device.
  virtual void prepare() = 0;
  // Starts the kernels on all parameters that have a gradient, and waits for nothing: a graph may record
  // it and replay it instead. found_inf: undefined, or one float on the device; if it is not 0, nothing
  // changes.
  virtual void launch(const at::Tensor& found_inf) = 0;
  // After each launch or replay: increases the optimizer's count of steps.
  virtual void count() = 0;
  // After launches with found_inf: subtracts skipped steps from the count. Waits for the device.
  virtual void fetch_counts() = 0;
  // The options that a recorded launch has fixed: after a change it must be recorded again.
  virtual std::vector<double> fixed_options() const = 0;
};

}  // namespace lockstep::optim
