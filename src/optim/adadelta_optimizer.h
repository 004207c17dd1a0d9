#pragma once

#include <lockstep/adadelta.h>
#include <torch/torch.h>

#include "optim/foreach_optimizer.h"

namespace lockstep::optim {

// The options of a parameter group, in the form of torch::optim.
struct AdadeltaGroupOptions : torch::optim::OptimizerCloneableOptions<AdadeltaGroupOptions> {
  explicit AdadeltaGroupOptions(double lr = 1.0) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { this->lr(lr); }
};

struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, square_avg);
  TORCH_ARG(at::Tensor, acc_delta);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// See make_adadelta.
class Adadelta final : public ForeachOptimizer<AdadeltaParamState, AdadeltaGroupOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace lockstep::optim
