#include "optim/fused_step.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <fmt/format.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <map>
#include <optional>

namespace lockstep::optim {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

template <typename Options>
const Options& options_of(const OptimizerParamGroup& group) {
  return static_cast<const Options&>(group.options());
}

// The learning rate on the device: a recorded step stays valid when a schedule changes it.
class DeviceRate {
 public:
  void set(double rate, const at::Tensor& like) {
    if (!tensor_.defined()) {
      tensor_ = at::full({}, rate, like.options().dtype(at::kFloat).requires_grad(false));
    } else if (rate != rate_) {
      tensor_.fill_(rate);
    }
    rate_ = rate;
  }
  const at::Tensor& tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;
  double rate_ = 0;
};

// Arguments of the kernels: lists of equal length.
struct FusedLists {
  std::vector<at::Tensor> parameters, gradients, first, second, third, steps;
};

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The common part: a learning rate on the device for each group.
class Base : public FusedStep {
 public:
  explicit Base(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer), rates_(optimizer.param_groups().size()) {}

  void prepare() override {
    for (size_t i = 0; i < rates_.size(); ++i) {
      const OptimizerParamGroup& group = optimizer_.param_groups()[i];
      if (!group.params().empty()) rates_[i].set(group.options().get_lr(), group.params().front());
    }
  }

 protected:
  template <typename State>
  State& state_of(const at::Tensor& parameter) const {
    auto& state = optimizer_.state()[parameter.unsafeGetTensorImpl()];
    if (!state) state = std::make_unique<State>();
    return static_cast<State&>(*state);
  }

  torch::optim::Optimizer& optimizer_;
  std::vector<DeviceRate> rates_;  // of each group
};

class FusedSgd : public Base {
 public:
  using Base::Base;

  static bool can_do(const torch::optim::Optimizer& optimizer) {
    for (const OptimizerParamGroup& group : optimizer.param_groups()) {
      if (options_of<SGDOptions>(group).dampening() != 0) return false;
    }
    return true;
  }

  void launch(const at::Tensor& found_inf) override {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < rates_.size(); ++i) {
      const OptimizerParamGroup& group = optimizer_.param_groups()[i];
      const auto& options = options_of<SGDOptions>(group);
      FusedLists lists;
      for (const at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        lists.parameters.push_back(parameter);
        lists.gradients.push_back(parameter.grad());
        if (options.momentum() != 0) lists.first.push_back(momentum_of(parameter));
      }
      if (lists.parameters.empty()) continue;
      // Not a first step: without dampening a buffer of zeros gives the same result.
      at::_fused_sgd_(lists.parameters, lists.gradients, lists.first, options.weight_decay(),
                      options.momentum(), rates_[i].tensor(), /*dampening=*/0, options.nesterov(),
                      /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{}, given(found_inf));
    }
  }

  void count() override {}
  void fetch_counts() override {}

  std::vector<double> fixed_options() const override {
    std::vector<double> fixed;
    for (const OptimizerParamGroup& group : optimizer_.param_groups()) {
      const auto& options = options_of<SGDOptions>(group);
      fixed.insert(fixed.end(), {options.momentum(), options.weight_decay(), options.nesterov() ? 1.0 : 0.0});
    }
    return fixed;
  }

 private:
  at::Tensor momentum_of(const at::Tensor& parameter) const {
    auto& state = state_of<SGDParamState>(parameter);
    if (!state.momentum_buffer().defined()) state.momentum_buffer(torch::zeros_like(parameter));
    return state.momentum_buffer();
  }
};

template <typename Options, typename State>
class FusedAdam : public Base {
 public:
  using Base::Base;

  void launch(const at::Tensor& found_inf) override {
    const torch::NoGradGuard no_grad;
    launched_.clear();
    for (size_t i = 0; i < rates_.size(); ++i) {
      const OptimizerParamGroup& group = optimizer_.param_groups()[i];
      const auto& options = options_of<Options>(group);
      const FusedLists lists = lists_of(group, options.amsgrad());
      if (lists.parameters.empty()) continue;
      at::_foreach_add_(lists.steps, 1);
      run_kernel(lists, rates_[i].tensor(), options, given(found_inf));
      if (found_inf.defined()) {
        at::_foreach_sub_(lists.steps, std::vector<at::Tensor>(lists.steps.size(), found_inf.squeeze()));
      }
    }
  }

  void count() override {
    for (State* state : launched_) state->step(state->step() + 1);
  }

  void fetch_counts() override {
    if (steps_.empty()) return;
    std::vector<at::Tensor> counts;
    for (const auto& [state, steps] : steps_) counts.push_back(steps);
    const at::Tensor values = at::stack(counts).cpu();
    int64_t i = 0;
    for (const auto& [state, steps] : steps_) {
      state->step(static_cast<int64_t>(values[i++].template item<float>()));
    }
  }

  std::vector<double> fixed_options() const override {
    std::vector<double> fixed;
    for (const OptimizerParamGroup& group : optimizer_.param_groups()) {
      const auto& options = options_of<Options>(group);
      fixed.insert(fixed.end(), {std::get<0>(options.betas()), std::get<1>(options.betas()), options.eps(),
                                 options.weight_decay(), options.amsgrad() ? 1.0 : 0.0});
    }
    return fixed;
  }

 private:
  static void run_kernel(const FusedLists& lists, const at::Tensor& rate, const Options& options,
                         const std::optional<at::Tensor>& found_inf) {
    const auto [beta1, beta2] = options.betas();
    const auto run = [&, b1 = beta1, b2 = beta2](auto kernel) {
      kernel(lists.parameters, lists.gradients, lists.first, lists.second, lists.third, lists.steps, rate, b1,
             b2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false,
             /*grad_scale=*/std::nullopt, found_inf);
    };
    if constexpr (std::is_same_v<Options, AdamOptions>) {
      run([](const auto&... arguments) { at::_fused_adam_(arguments...); });
    } else {
      run([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
    }
  }

  FusedLists lists_of(const OptimizerParamGroup& group, bool amsgrad) {
    FusedLists lists;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_of<State>(parameter);
      if (!state.exp_avg().defined()) state.exp_avg(torch::zeros_like(parameter));
      if (!state.exp_avg_sq().defined()) state.exp_avg_sq(torch::zeros_like(parameter));
      if (amsgrad && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(torch::zeros_like(parameter));
      lists.parameters.push_back(parameter);
      lists.gradients.push_back(parameter.grad());
      lists.first.push_back(state.exp_avg());
      lists.second.push_back(state.exp_avg_sq());
      if (amsgrad) lists.third.push_back(state.max_exp_avg_sq());
      lists.steps.push_back(steps_of(state, parameter));
      launched_.push_back(&state);
    }
    return lists;
  }

  at::Tensor steps_of(State& state, const at::Tensor& parameter) {
    at::Tensor& steps = steps_[&state];
    if (!steps.defined()) {
      steps = at::full({}, state.step(), parameter.options().dtype(at::kFloat).requires_grad(false));
    }
    return steps;
  }

  std::map<State*, at::Tensor> steps_;  // each parameter's, on its device
  std::vector<State*> launched_;        // by the last launch
};

}  // namespace

std::string FusedStep::objection(const torch::optim::Optimizer& optimizer) {
  // Exactly these classes: a derived class may do something else.
  const std::type_info& type = typeid(optimizer);
  const bool is_sgd = type == typeid(torch::optim::SGD);
  if (!is_sgd && type != typeid(torch::optim::Adam) && type != typeid(torch::optim::AdamW)) {
    return fmt::format("its class is {}, and there are fused kernels for LibTorch's SGD, Adam and AdamW",
                       optimizer_class(optimizer));
  }
  if (is_sgd && !FusedSgd::can_do(optimizer)) {
    return "its dampening is not 0, which the fused kernels do not have: set dampening to 0";
  }
  // The kernels take learning rates in float32: too coarse for float64.
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.scalar_type() == at::kDouble) {
        return "its parameters are float64, for which the fused kernels are too coarse: set dtype to float32";
      }
      if (parameter.is_complex()) return "its parameters are complex, which the fused kernels do not have";
    }
  }
  return "";
}

std::unique_ptr<FusedStep> FusedStep::make(torch::optim::Optimizer& optimizer) {
  if (!objection(optimizer).empty()) return nullptr;
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) return std::make_unique<FusedSgd>(optimizer);
  if (type == typeid(torch::optim::Adam)) {
    return std::make_unique<FusedAdam<AdamOptions, AdamParamState>>(optimizer);
  }
  return std::make_unique<FusedAdam<AdamWOptions, AdamWParamState>>(optimizer);
}

}  // namespace lockstep::optim
