#pragma once

#include <lockstep/lion.h>
#include <torch/torch.h>

#include <tuple>

#include "optim/foreach_optimizer.h"

namespace lockstep::optim {

struct LionGroupOptions : torch::optim::OptimizerCloneableOptions<LionGroupOptions> {
  explicit LionGroupOptions(double lr = 1e-4) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { this->lr(lr); }
};

struct LionParamState : torch::optim::OptimizerCloneableParamState<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// See make_lion.
class Lion final : public ForeachOptimizer<LionParamState, LionGroupOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace lockstep::optim
