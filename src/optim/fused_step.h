#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep::optim {

// The step of an optimizer in a few kernels for all parameters together, instead of a few
// for each. It works on the optimizer's own options and state, so that schedules and
// checkpoints see no difference. The results are those of the optimizer to rounding.
//
//   fused->prepare();
//   fused->launch(found_inf);
//   fused->count();
//
// One thread at a time. The optimizer must outlive it, and nobody else may load a state
// into it meanwhile.
class FusedStep {
 public:
  // For SGD, Adam and AdamW. Null: another class, or an option that the kernels do not
  // have (dampening).
  static std::unique_ptr<FusedStep> make(torch::optim::Optimizer& optimizer);
  // Why make() returns null, and what to change; "": it does not.
  static std::string objection(const torch::optim::Optimizer& optimizer);
  virtual ~FusedStep() = default;

  // Brings the learning rates to the device, where they have changed.
  virtual void prepare() = 0;
  // Starts the kernels, on all parameters that have a gradient, and waits for nothing: a
  // graph may record it and replay it in its place. found_inf: undefined, or one float on
  // the device; where it is not 0 nothing changes.
  virtual void launch(const at::Tensor& found_inf) = 0;
  // After each launch or replay: the optimizer's own count of steps.
  virtual void count() = 0;
  // After launches with found_inf: takes skipped steps out of the count again. Waits for
  // the device.
  virtual void settle() = 0;
  // The options that a recorded launch has fixed: a change of one asks for a new record.
  virtual std::vector<double> fixed_options() const = 0;
};

}  // namespace lockstep::optim
