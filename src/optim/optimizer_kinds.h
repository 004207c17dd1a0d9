#pragma once

#include <torch/torch.h>

#include <typeinfo>

#include "optim/adadelta_optimizer.h"
#include "optim/cpu_adagrad_optimizer.h"
#include "optim/cpu_adam_optimizer.h"
#include "optim/lamb_optimizer.h"
#include "optim/lion_optimizer.h"
#include "optim/python_adam_optimizer.h"

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

// Calls visit(kind) for the class of this optimizer, exactly: a class derived from one
// may have a state of its own. False: none of these.
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

}  // namespace lockstep::optim
