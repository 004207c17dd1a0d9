#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

namespace lockstep::optim {

// An optimizer that steps the parameters of a group together, by operations on lists of
// tensors in Python's order. On the CPU those are the ones for one tensor in a loop, on a
// GPU few kernels for all.
template <typename State, typename Options>
class ForeachOptimizer : public torch::optim::Optimizer {
 public:
  explicit ForeachOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                            const Options& defaults)
      : Optimizer(groups, std::make_unique<Options>(defaults)) {}
  // One group of all.
  ForeachOptimizer(const std::vector<at::Tensor>& parameters, const Options& defaults)
      : ForeachOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(parameters)},
            defaults) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    const torch::NoGradGuard no_grad;
    at::Tensor loss;
    if (closure != nullptr) {
      const at::AutoGradMode with_grad(true);
      loss = closure();
    }
    for (torch::optim::OptimizerParamGroup& group : param_groups_) step_group(group);
    return loss;
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<State, Options>(archive, *this);
  }

 protected:
  // What is known of a parameter; the first time `begin` completes a new state.
  template <typename Begin>
  State& state_of(const at::Tensor& parameter, Begin begin) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (slot == nullptr) {
      auto fresh = std::make_unique<State>();
      begin(*fresh);
      slot = std::move(fresh);
    }
    return static_cast<State&>(*slot);
  }

  virtual void step_group(torch::optim::OptimizerParamGroup& group) = 0;
};

}  // namespace lockstep::optim
