#include "optim/flat_optimizer.h"

#include <torch/torch.h>

#include <type_traits>

#include "optim/flat_rule.h"
#include "optim/flat_step.h"
#include "optim/optimizer_fields.h"
#include "optim/optimizer_kinds.h"

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

// What the kernels work on, of one parameter.
struct FlatState {
  FlatRule rule;
  at::Tensor first;
  at::Tensor second;
};

template <typename State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

at::Tensor zeros_of(const at::Tensor& parameter) {
  return torch::zeros_like(parameter, at::MemoryFormat::Preserve);
}

// Each makes the state where there is none, as the optimizer's own first step would.

template <typename State>
FlatState adam_state(Optimizer& optimizer, const OptimizerOptions& options, const at::Tensor& parameter) {
  auto& state = state_of<State>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(zeros_of(parameter));
    state.exp_avg_sq(zeros_of(parameter));
  }
  state.step(state.step() + 1);
  return {*flat_rule(options, state.step()), state.exp_avg(), state.exp_avg_sq()};
}

FlatState adagrad_state(Optimizer& optimizer, const torch::optim::AdagradOptions& options,
                        const at::Tensor& parameter) {
  auto& state = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
  if (!state.sum().defined()) {
    state.step(0);
    state.sum(
        torch::full_like(parameter, options.initial_accumulator_value(), {}, at::MemoryFormat::Preserve));
  }
  state.step(state.step() + 1);
  return {*flat_rule(options, state.step()), state.sum(), {}};
}

FlatState lion_state(Optimizer& optimizer, const LionGroupOptions& options, const at::Tensor& parameter) {
  auto& state = state_of<LionParamState>(optimizer, parameter);
  if (!state.exp_avg().defined()) state.exp_avg(zeros_of(parameter));
  return {*flat_rule(options, 1), state.exp_avg(), {}};
}

FlatState sgd_state(Optimizer& optimizer, const torch::optim::SGDOptions& options,
                    const at::Tensor& parameter) {
  if (options.momentum() == 0) return {*flat_rule(options, 1), {}, {}};
  auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
  const bool is_first = !state.momentum_buffer().defined();
  if (is_first) state.momentum_buffer(zeros_of(parameter));
  return {*flat_rule(options, is_first ? 1 : 2), state.momentum_buffer(), {}};
}

template <typename Options>
FlatState flat_state(Optimizer& optimizer, const OptimizerOptions& options, const at::Tensor& parameter) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  const auto& own = static_cast<const Options&>(options);
  if constexpr (std::is_same_v<Options, AdamOptions>) {
    return adam_state<AdamParamState>(optimizer, own, parameter);
  } else if constexpr (std::is_same_v<Options, AdamWOptions>) {
    return adam_state<AdamWParamState>(optimizer, own, parameter);
  } else if constexpr (std::is_same_v<Options, AdagradOptions>) {
    return adagrad_state(optimizer, own, parameter);
  } else if constexpr (std::is_same_v<Options, LionGroupOptions>) {
    return lion_state(optimizer, own, parameter);
  } else {
    return sgd_state(optimizer, own, parameter);
  }
}

template <typename Options>
constexpr bool kHasKernel =
    kIsOneOf<Options, torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::AdagradOptions,
             torch::optim::SGDOptions, LionGroupOptions>;

}  // namespace

bool step_one_flat(Optimizer& optimizer, const OptimizerOptions& options, const at::Tensor& parameter,
                   const at::Tensor& gradient, const FlatExtras& extras) {
  // Its steps are those of Python's Adam to the bit, which the kernels' are not.
  const bool is_exact = typeid(optimizer) == typeid(PythonAdam);
  if (is_exact || !is_flat(parameter) || !flat_rule(options, 1)) return false;
  bool done = false;
  visit_kind(optimizer, [&](const auto& kind) {
    using Options = typename std::decay_t<decltype(kind)>::Options;
    if constexpr (kHasKernel<Options>) {
      const FlatState state = flat_state<Options>(optimizer, options, parameter);
      step_tensor(state.rule, parameter, gradient, state.first, state.second, extras);
      done = true;
    }
  });
  return done;
}

std::vector<at::Tensor> state_tensors(const Optimizer& optimizer, const at::Tensor& parameter) {
  std::vector<at::Tensor> tensors;
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return tensors;
  visit_kind(optimizer, [&](const auto& kind) {
    using State = typename std::decay_t<decltype(kind)>::State;
    if constexpr (!std::is_same_v<State, torch::optim::LBFGSParamState>) {
      for_each_state(static_cast<const State&>(*found->second), [&](const char*, const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          if (value.defined()) tensors.push_back(value);
        }
      });
    }
  });
  return tensors;
}

int max_state_tensors(const Optimizer& optimizer, const OptimizerOptions& options) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  int count = -1;
  visit_kind(optimizer, [&](const auto& kind) {
    using Options = typename std::decay_t<decltype(kind)>::Options;
    const auto& own = static_cast<const Options&>(options);
    if constexpr (kIsOneOf<Options, AdamOptions, AdamWOptions>) {
      count = own.amsgrad() ? 3 : 2;
    } else if constexpr (kIsOneOf<Options, RMSpropOptions>) {
      count = 1 + (own.momentum() > 0 ? 1 : 0) + (own.centered() ? 1 : 0);
    } else if constexpr (kIsOneOf<Options, SGDOptions>) {
      count = own.momentum() != 0 ? 1 : 0;
    } else if constexpr (kIsOneOf<Options, AdadeltaGroupOptions>) {
      count = 2;
    } else if constexpr (kIsOneOf<Options, AdagradOptions, LionGroupOptions>) {
      count = 1;
    }
  });
  return count;
}

}  // namespace lockstep::optim
