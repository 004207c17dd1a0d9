#pragma once

#include <torch/torch.h>

#include <type_traits>
#include <typeinfo>

#include "optim/optimizers.h"

namespace lockstep::optim {

// A class of optimizers with the classes of its options and of a parameter's state.
template <typename OptimizerType, typename OptionsType, typename StateType>
struct OptimizerKind {
  using Options = OptionsType;
  using State = StateType;
  static constexpr bool kIsLbfgs = std::is_same_v<OptimizerType, torch::optim::LBFGS>;

  const char* name;
  bool is_class_of(const torch::optim::Optimizer& optimizer) const {
    return typeid(optimizer) == typeid(OptimizerType);
  }
};

// Calls visit(kind) if the optimizer is exactly of one of these classes: a derived class may have another
// state. False: it is none of them.
template <typename Visit>
bool visit_kind(const torch::optim::Optimizer& optimizer, Visit visit) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  const auto try_kind = [&](const auto& kind) { return kind.is_class_of(optimizer) && (visit(kind), true); };
  return try_kind(OptimizerKind<SGD, SGDOptions, SGDParamState>{"SGD"}) ||
         try_kind(OptimizerKind<Adam, AdamOptions, AdamParamState>{"Adam"}) ||
         try_kind(OptimizerKind<PythonAdam, AdamOptions, AdamParamState>{"Adam"}) ||
         try_kind(OptimizerKind<CpuAdam, AdamOptions, AdamParamState>{"Adam"}) ||
         try_kind(OptimizerKind<AdamW, AdamWOptions, AdamWParamState>{"AdamW"}) ||
         try_kind(OptimizerKind<CpuAdamW, AdamWOptions, AdamWParamState>{"AdamW"}) ||
         try_kind(OptimizerKind<Adagrad, AdagradOptions, AdagradParamState>{"Adagrad"}) ||
         try_kind(OptimizerKind<CpuAdagrad, AdagradOptions, AdagradParamState>{"Adagrad"}) ||
         try_kind(OptimizerKind<RMSprop, RMSpropOptions, RMSpropParamState>{"RMSprop"}) ||
         try_kind(OptimizerKind<Adadelta, AdadeltaGroupOptions, AdadeltaParamState>{"Adadelta"}) ||
         try_kind(OptimizerKind<Lion, LionGroupOptions, LionParamState>{"Lion"}) ||
         try_kind(OptimizerKind<Lamb, LambGroupOptions, LambParamState>{"Lamb"}) ||
         try_kind(OptimizerKind<LBFGS, LBFGSOptions, LBFGSParamState>{"LBFGS"});
}

// The options and the state of the classes of torch::optim and of ours, field by field: calls
// field(name, reference) for each. The argument may be const.

template <typename T, typename... Us>
inline constexpr bool kIsOneOf = (std::is_same_v<std::remove_const_t<T>, Us> || ...);

template <typename Options, typename Field>
void for_each_option(Options& options, Field&& field) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  field("lr", options.lr());
  if constexpr (kIsOneOf<Options, SGDOptions>) {
    field("momentum", options.momentum());
    field("dampening", options.dampening());
    field("weight_decay", options.weight_decay());
    field("nesterov", options.nesterov());
  } else if constexpr (kIsOneOf<Options, AdamOptions, AdamWOptions>) {
    field("betas", options.betas());
    field("eps", options.eps());
    field("weight_decay", options.weight_decay());
    field("amsgrad", options.amsgrad());
  } else if constexpr (kIsOneOf<Options, AdagradOptions>) {
    field("lr_decay", options.lr_decay());
    field("weight_decay", options.weight_decay());
    field("initial_accumulator_value", options.initial_accumulator_value());
    field("eps", options.eps());
  } else if constexpr (kIsOneOf<Options, RMSpropOptions>) {
    field("alpha", options.alpha());
    field("eps", options.eps());
    field("weight_decay", options.weight_decay());
    field("momentum", options.momentum());
    field("centered", options.centered());
  } else if constexpr (kIsOneOf<Options, AdadeltaGroupOptions>) {
    field("rho", options.rho());
    field("eps", options.eps());
    field("weight_decay", options.weight_decay());
  } else if constexpr (kIsOneOf<Options, LionGroupOptions>) {
    field("betas", options.betas());
    field("weight_decay", options.weight_decay());
  } else if constexpr (kIsOneOf<Options, LambGroupOptions>) {
    field("betas", options.betas());
    field("eps", options.eps());
    field("weight_decay", options.weight_decay());
    field("bias_correction", options.bias_correction());
    field("eps_inside_sqrt", options.eps_inside_sqrt());
    field("max_coeff", options.max_coeff());
    field("min_coeff", options.min_coeff());
  } else {
    static_assert(kIsOneOf<Options, LBFGSOptions>);
    field("max_iter", options.max_iter());
    field("max_eval", options.max_eval());
    field("tolerance_grad", options.tolerance_grad());
    field("tolerance_change", options.tolerance_change());
    field("history_size", options.history_size());
    field("line_search_fn", options.line_search_fn());
  }
}

// The state of one parameter: numbers and tensors of the parameter's shape. LBFGS's lists are
// not included, and its `al` is scratch that every step writes before reading.
template <typename State, typename Field>
void for_each_state(State& state, Field&& field) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  if constexpr (kIsOneOf<State, SGDParamState>) {
    field("momentum_buffer", state.momentum_buffer());
  } else if constexpr (kIsOneOf<State, AdamParamState, AdamWParamState>) {
    field("step", state.step());
    field("exp_avg", state.exp_avg());
    field("exp_avg_sq", state.exp_avg_sq());
    field("max_exp_avg_sq", state.max_exp_avg_sq());
  } else if constexpr (kIsOneOf<State, AdagradParamState>) {
    field("step", state.step());
    field("sum", state.sum());
  } else if constexpr (kIsOneOf<State, RMSpropParamState>) {
    field("step", state.step());
    field("square_avg", state.square_avg());
    field("momentum_buffer", state.momentum_buffer());
    field("grad_avg", state.grad_avg());
  } else if constexpr (kIsOneOf<State, AdadeltaParamState>) {
    field("step", state.step());
    field("square_avg", state.square_avg());
    field("acc_delta", state.acc_delta());
  } else if constexpr (kIsOneOf<State, LionParamState>) {
    field("exp_avg", state.exp_avg());
  } else if constexpr (kIsOneOf<State, LambParamState>) {
    field("step", state.step());
    field("exp_avg", state.exp_avg());
    field("exp_avg_sq", state.exp_avg_sq());
  } else {
    static_assert(kIsOneOf<State, LBFGSParamState>);
    field("func_evals", state.func_evals());
    field("n_iter", state.n_iter());
    field("t", state.t());
    field("prev_loss", state.prev_loss());
    field("d", state.d());
    field("H_diag", state.H_diag());
    field("prev_flat_grad", state.prev_flat_grad());
    field("old_dirs", state.old_dirs());
    field("old_stps", state.old_stps());
    field("ro", state.ro());
  }
}

}  // namespace lockstep::optim
