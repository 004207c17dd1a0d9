#include <lockstep/optim.h>

#include <cmath>

#include "optim/argument.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {
namespace {

using torch::optim::AdamParamState;
using torch::optim::OptimizerParamGroup;

// The tensors of one step of a group, all lists in the same order.
struct AdamLists {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> largest;  // with amsgrad
  std::vector<at::Scalar> step_sizes;
  std::vector<at::Scalar> roots;  // of the second moment's bias correction
};

void append(AdamLists& lists, const at::Tensor& parameter, AdamParamState& state,
            const torch::optim::AdamOptions& options) {
  state.step(state.step() + 1);
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(state.step());
  lists.parameters.push_back(parameter);
  lists.gradients.push_back(parameter.grad());
  lists.averages.push_back(real_view(state.exp_avg()));
  lists.squares.push_back(real_view(state.exp_avg_sq()));
  if (options.amsgrad()) lists.largest.push_back(real_view(state.max_exp_avg_sq()));
  lists.step_sizes.emplace_back(options.lr() / (1 - std::pow(beta1, steps)) * -1);
  lists.roots.emplace_back(std::sqrt(1 - std::pow(beta2, steps)));
}

}  // namespace

void PythonAdam::step_group(OptimizerParamGroup& group) {
  const auto& options = static_cast<const torch::optim::AdamOptions&>(group.options());
  AdamLists lists;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    AdamParamState& state = state_of(parameter, [&](AdamParamState& fresh) {
      fresh.exp_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
      fresh.exp_avg_sq(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
      if (options.amsgrad()) {
        fresh.max_exp_avg_sq(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
      }
    });
    append(lists, parameter, state, options);
  }
  if (lists.parameters.empty()) return;
  if (options.weight_decay() != 0) {
    lists.gradients = at::_foreach_add(lists.gradients, lists.parameters, options.weight_decay());
  }
  // After the weight decay, as in Python: complex sums are rounded in another way than sums of pairs.
  make_real(lists.parameters);
  make_real(lists.gradients);
  const auto [beta1, beta2] = options.betas();
  at::_foreach_lerp_(lists.averages, lists.gradients, 1 - beta1);
  at::_foreach_mul_(lists.squares, beta2);
  at::_foreach_addcmul_(lists.squares, lists.gradients, lists.gradients, 1 - beta2);
  if (options.amsgrad()) at::_foreach_maximum_(lists.largest, lists.squares);
  auto denominators = at::_foreach_sqrt(options.amsgrad() ? lists.largest : lists.squares);
  at::_foreach_div_(denominators, lists.roots);
  at::_foreach_add_(denominators, options.eps());
  at::_foreach_addcdiv_(lists.parameters, lists.averages, denominators, lists.step_sizes);
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_python_adam(const std::vector<at::Tensor>& parameters,
                                                          const PythonAdamOptions& options) {
  constexpr auto kWhat = "the optimizer PythonAdam";
  optim::require_parameters(kWhat, parameters);
  optim::require_adam_options(kWhat, options);
  const auto group = torch::optim::AdamOptions(options.lr)
                         .betas({options.beta1, options.beta2})
                         .eps(options.eps)
                         .weight_decay(options.weight_decay)
                         .amsgrad(options.amsgrad);
  return std::make_unique<optim::PythonAdam>(parameters, group);
}

}  // namespace lockstep
