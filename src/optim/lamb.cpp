#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/lamb_kernels.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {

using torch::optim::OptimizerParamGroup;

namespace {

// The tensors of one step of a group, all lists in the same order.
struct LambLists {
  std::vector<at::Tensor> parameters, gradients, averages, squares;
  std::vector<at::Scalar> negative_steps;
};

LambRule rule_of(const LambGroupOptions& options) {
  LambRule rule;
  rule.lr = options.lr();
  std::tie(rule.beta1, rule.beta2) = options.betas();
  rule.eps = options.eps();
  rule.weight_decay = options.weight_decay();
  rule.bias_correction = options.bias_correction();
  rule.eps_inside_sqrt = options.eps_inside_sqrt();
  rule.max_coeff = options.max_coeff();
  rule.min_coeff = options.min_coeff();
  return rule;
}

std::vector<at::Tensor> updates_of(const LambRule& rule, const LambLists& lists) {
  std::vector<at::Tensor> denominators;
  if (rule.eps_inside_sqrt) {
    denominators = at::_foreach_add(lists.squares, rule.eps);
    at::_foreach_sqrt_(denominators);
  } else {
    denominators = at::_foreach_sqrt(lists.squares);
    at::_foreach_add_(denominators, rule.eps);
  }
  auto updates = at::_foreach_div(lists.averages, denominators);
  if (rule.weight_decay != 0) at::_foreach_add_(updates, lists.parameters, rule.weight_decay);
  return updates;
}

// The multiplier of each update, as scalars on the device: the host does not wait for them.
std::vector<at::Tensor> multipliers_of(const LambRule& rule, const LambLists& lists,
                                       const std::vector<at::Tensor>& updates) {
  const at::Tensor weights = at::stack(at::_foreach_norm(lists.parameters));
  const at::Tensor sizes = at::stack(at::_foreach_norm(updates));
  const at::Tensor ratios = (weights / sizes).clamp(rule.min_coeff, rule.max_coeff);
  const at::Tensor known = weights.ne(0).logical_and(sizes.ne(0));
  auto multipliers = at::where(known, ratios, at::ones_like(ratios)).unbind();
  at::_foreach_mul_(multipliers, lists.negative_steps);
  return multipliers;
}

}  // namespace

void Lamb::step_group(OptimizerParamGroup& group) {
  LambRule rule = rule_of(static_cast<const LambGroupOptions&>(group.options()));
  LambLists lists;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    LambParamState& state = state_of(parameter, [&](LambParamState& fresh) {
      fresh.exp_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
      fresh.exp_avg_sq(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
    });
    state.step(state.step() + 1);
    rule.step = state.step();
    lists.parameters.push_back(parameter);
    lists.gradients.push_back(parameter.grad());
    lists.averages.push_back(state.exp_avg());
    lists.squares.push_back(state.exp_avg_sq());
    lists.negative_steps.emplace_back(-lamb_step_size(rule));
  }
  if (lists.parameters.empty()) return;
  at::_foreach_mul_(lists.averages, rule.beta1);
  at::_foreach_add_(lists.averages, lists.gradients, 1 - rule.beta1);
  at::_foreach_mul_(lists.squares, rule.beta2);
  at::_foreach_addcmul_(lists.squares, lists.gradients, lists.gradients, 1 - rule.beta2);
  const auto updates = updates_of(rule, lists);
  at::_foreach_mul_(updates, multipliers_of(rule, lists, updates));
  at::_foreach_add_(lists.parameters, updates);
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_lamb(const std::vector<at::Tensor>& parameters,
                                                   const LambOptions& options) {
  constexpr auto kWhat = "the optimizer Lamb";
  optim::require_parameters(kWhat, parameters);
  for (const at::Tensor& parameter : parameters) {
    optim::require(parameter.device() == parameters[0].device(), kWhat, "parameters", "on one device",
                   parameter.device().str());
  }
  optim::require_adam_options(kWhat, options);
  optim::require_not_negative(kWhat, "min_coeff", options.min_coeff);
  optim::require(options.max_coeff >= options.min_coeff, kWhat, "max_coeff", "at least min_coeff",
                 options.max_coeff);
  const auto group = optim::LambGroupOptions(options.lr)
                         .betas({options.beta1, options.beta2})
                         .eps(options.eps)
                         .weight_decay(options.weight_decay)
                         .bias_correction(options.bias_correction)
                         .eps_inside_sqrt(options.eps_inside_sqrt)
                         .max_coeff(options.max_coeff)
                         .min_coeff(options.min_coeff);
  return std::make_unique<optim::Lamb>(parameters, group);
}

}  // namespace lockstep
