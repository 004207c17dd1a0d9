#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {

using torch::optim::OptimizerParamGroup;

void Adadelta::step_group(OptimizerParamGroup& group) {
  const auto& options = static_cast<const AdadeltaGroupOptions&>(group.options());
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> accumulated;
  for (const at::Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    AdadeltaParamState& state = state_of(parameter, [&](AdadeltaParamState& fresh) {
      fresh.square_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
      fresh.acc_delta(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
    });
    state.step(state.step() + 1);
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
    squares.push_back(real_view(state.square_avg()));
    accumulated.push_back(real_view(state.acc_delta()));
  }
  if (parameters.empty()) return;
  if (options.weight_decay() != 0) {
    gradients = at::_foreach_add(gradients, parameters, options.weight_decay());
  }
  // Not the sums with parameters, as in Python: complex ones are rounded in another way than pairs.
  make_real(gradients);
  at::_foreach_mul_(squares, options.rho());
  at::_foreach_addcmul_(squares, gradients, gradients, 1 - options.rho());
  auto deviations = at::_foreach_add(squares, options.eps());
  at::_foreach_sqrt_(deviations);
  auto deltas = at::_foreach_add(accumulated, options.eps());
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, deviations);
  at::_foreach_mul_(deltas, gradients);
  at::_foreach_mul_(accumulated, options.rho());
  at::_foreach_addcmul_(accumulated, deltas, deltas, 1 - options.rho());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].is_complex()) deltas[i] = at::view_as_complex(deltas[i]);
  }
  at::_foreach_add_(parameters, deltas, -options.lr());
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_adadelta(const std::vector<at::Tensor>& parameters,
                                                       const AdadeltaOptions& options) {
  constexpr auto kWhat = "the optimizer Adadelta";
  optim::require_parameters(kWhat, parameters);
  optim::require_not_negative(kWhat, "lr", options.lr);
  optim::require_fraction(kWhat, "rho", options.rho);
  optim::require_not_negative(kWhat, "eps", options.eps);
  optim::require_not_negative(kWhat, "weight_decay", options.weight_decay);
  const auto group = optim::AdadeltaGroupOptions(options.lr)
                         .rho(options.rho)
                         .eps(options.eps)
                         .weight_decay(options.weight_decay);
  return std::make_unique<optim::Adadelta>(parameters, group);
}

}  // namespace lockstep
