#pragma once

#include <lockstep/lamb.h>
#include <torch/torch.h>

#include <tuple>

#include "optim/foreach_optimizer.h"

namespace lockstep::optim {

struct LambGroupOptions : torch::optim::OptimizerCloneableOptions<LambGroupOptions> {
  explicit LambGroupOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(bool, eps_inside_sqrt) = false;
  TORCH_ARG(double, max_coeff) = 10;
  TORCH_ARG(double, min_coeff) = 0.01;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { this->lr(lr); }
};

struct LambParamState : torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// See make_lamb.
class Lamb final : public ForeachOptimizer<LambParamState, LambGroupOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace lockstep::optim
