#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/flat_step.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {

using torch::optim::OptimizerParamGroup;

namespace {

// In the order of the flat kernel.
void step_lists(const LionRule& rule, const std::vector<at::Tensor>& parameters,
                const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& averages) {
  auto updates = at::_foreach_mul(averages, rule.beta1);
  at::_foreach_add_(updates, gradients, 1 - rule.beta1);
  at::_foreach_sign_(updates);
  if (rule.weight_decay != 0) at::_foreach_mul_(parameters, 1 - rule.lr * rule.weight_decay);
  at::_foreach_add_(parameters, updates, -rule.lr);
  at::_foreach_mul_(averages, rule.beta2);
  at::_foreach_add_(averages, gradients, 1 - rule.beta2);
}

}  // namespace

void Lion::step_group(OptimizerParamGroup& group) {
  const auto rule = std::get<LionRule>(*flat_rule(group.options(), 1));
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> averages;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor average = state_of(parameter, [&](LionParamState& fresh) {
                                 fresh.exp_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
                               }).exp_avg();
    if (is_flat(parameter)) {
      step_tensor(rule, parameter, parameter.grad(), average);
      continue;
    }
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
    averages.push_back(average);
  }
  if (!parameters.empty()) step_lists(rule, parameters, gradients, averages);
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_lion(const std::vector<at::Tensor>& parameters,
                                                   const LionOptions& options) {
  constexpr auto kWhat = "the optimizer Lion";
  optim::require_parameters(kWhat, parameters);
  optim::require_not_negative(kWhat, "lr", options.lr);
  optim::require_fraction(kWhat, "beta1", options.beta1);
  optim::require_fraction(kWhat, "beta2", options.beta2);
  optim::require_not_negative(kWhat, "weight_decay", options.weight_decay);
  const auto group = optim::LionGroupOptions(options.lr)
                         .betas({options.beta1, options.beta2})
                         .weight_decay(options.weight_decay);
  return std::make_unique<optim::Lion>(parameters, group);
}

}  // namespace lockstep
