#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {

using torch::optim::OptimizerParamGroup;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

void AdadeltaGroupOptions::serialize(InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, rho);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

void AdadeltaGroupOptions::serialize(OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(rho);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void AdadeltaParamState::serialize(InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, square_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, acc_delta);
}

void AdadeltaParamState::serialize(OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(square_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(acc_delta);
}

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
    squares.push_back(state.square_avg());
    accumulated.push_back(state.acc_delta());
  }
  if (parameters.empty()) return;
  if (options.weight_decay() != 0) {
    gradients = at::_foreach_add(gradients, parameters, options.weight_decay());
  }
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
  at::_foreach_add_(parameters, deltas, -options.lr());
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_adadelta(const std::vector<at::Tensor>& parameters,
                                                       const AdadeltaOptions& options) {
  constexpr auto kWhat = "the optimizer Adadelta";
  optim::require(!parameters.empty(), kWhat, "parameters", "one or more", "none");
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
