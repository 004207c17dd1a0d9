#pragma once

#include <lockstep/optim.h>
#include <torch/torch.h>

#include <memory>
#include <tuple>
#include <vector>

#include "optim/flat_step.h"

namespace lockstep::optim {

// The optimizers of this library. make_adadelta() and its siblings in <lockstep/optim.h> make them.

// The real and imaginary parts of a complex tensor; another tensor as it is. As Python's optimizers, those
// that square gradients step complex parameters as pairs of real ones.
inline at::Tensor real_view(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

inline void make_real(std::vector<at::Tensor>& tensors) {
  for (at::Tensor& tensor : tensors) tensor = real_view(tensor);
}

// An optimizer that steps the parameters of a group together, by operations on lists of tensors in the
// order of Python's. On the CPU such an operation is a loop over tensors, on a GPU a few kernels for
// all.
template <typename State, typename Options>
class ForeachOptimizer : public torch::optim::Optimizer {
 public:
  explicit ForeachOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                            const Options& defaults)
      : Optimizer(groups, std::make_unique<Options>(defaults)) {}
  // All parameters in one group.
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
  // The state of a parameter; `begin` fills a new one.
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

// The options of a parameter group and the state of a parameter, in the form of torch::optim. Their
// fields, which are also the keys in an archive, are listed once, in optimizer_kinds.h.
template <typename Own>
struct GroupOptions : torch::optim::OptimizerCloneableOptions<Own> {
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return static_cast<const Own&>(*this).lr(); }
  void set_lr(double lr) override { static_cast<Own&>(*this).lr(lr); }
};

template <typename Own>
struct ParamState : torch::optim::OptimizerCloneableParamState<Own> {
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

struct AdadeltaGroupOptions : GroupOptions<AdadeltaGroupOptions> {
  explicit AdadeltaGroupOptions(double lr = 1.0) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;
};

struct AdadeltaParamState : ParamState<AdadeltaParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, square_avg);
  TORCH_ARG(at::Tensor, acc_delta);
};

// See make_adadelta.
class Adadelta final : public ForeachOptimizer<AdadeltaParamState, AdadeltaGroupOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

// See make_adam_lbfgs. The options of its group are AdamOptions: their rate and betas are copied to the
// optimizers inside before each step.
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

// See make_cpu_adagrad. Options and state are those of torch::optim::Adagrad.
class CpuAdagrad final
    : public ForeachOptimizer<torch::optim::AdagradParamState, torch::optim::AdagradOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

// See make_cpu_adam. Options and state are those of torch::optim's class.
template <typename State, typename Options>
class CpuAdamOptimizer final : public ForeachOptimizer<State, Options>, public StepsTails {
 public:
  using ForeachOptimizer<State, Options>::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

using CpuAdam = CpuAdamOptimizer<torch::optim::AdamParamState, torch::optim::AdamOptions>;
using CpuAdamW = CpuAdamOptimizer<torch::optim::AdamWParamState, torch::optim::AdamWOptions>;

struct LambGroupOptions : GroupOptions<LambGroupOptions> {
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
};

struct LambParamState : ParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);
};

// See make_lamb.
class Lamb final : public ForeachOptimizer<LambParamState, LambGroupOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

struct LionGroupOptions : GroupOptions<LionGroupOptions> {
  explicit LionGroupOptions(double lr = 1e-4) : lr_(lr) {}
  TORCH_ARG(double, lr);
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;
};

struct LionParamState : ParamState<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg);
};

// See make_lion.
class Lion final : public ForeachOptimizer<LionParamState, LionGroupOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

// See make_python_adam. Options and state are those of torch::optim::Adam.
class PythonAdam final : public ForeachOptimizer<torch::optim::AdamParamState, torch::optim::AdamOptions> {
 public:
  using ForeachOptimizer::ForeachOptimizer;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

}  // namespace lockstep::optim
