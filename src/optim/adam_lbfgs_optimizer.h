#pragma once

#include <lockstep/adam_lbfgs.h>
#include <torch/torch.h>

namespace lockstep::optim {

// See make_adam_lbfgs. The options of its group are AdamOptions: the rate and the betas
// that count are these, and reach the optimizers inside before each step.
class AdamLbfgs final : public torch::optim::Optimizer {
 public:
  AdamLbfgs(const std::vector<at::Tensor>& parameters, const AdamLbfgsOptions& options);

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  bool switched() const { return steps_ >= options_.switch_step; }
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  torch::optim::Adam& adam() { return adam_; }
  const torch::optim::Adam& adam() const { return adam_; }
  torch::optim::LBFGS& lbfgs() { return lbfgs_; }
  const torch::optim::LBFGS& lbfgs() const { return lbfgs_; }

 private:
  AdamLbfgsOptions options_;
  torch::optim::Adam adam_;
  torch::optim::LBFGS lbfgs_;
  int64_t steps_ = 0;
};

}  // namespace lockstep::optim
