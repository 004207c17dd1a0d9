#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/flat_step.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {

using torch::optim::OptimizerParamGroup;

void CpuAdagrad::step_group(OptimizerParamGroup& group) {
  require_flat("the optimizer CpuAdagrad", group.params());
  for (const at::Tensor& parameter : group.params()) {
    if (parameter.grad().defined()) step_one_flat(*this, group.options(), parameter, parameter.grad());
  }
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_cpu_adagrad(const std::vector<at::Tensor>& parameters,
                                                          const CpuAdagradOptions& options) {
  constexpr auto kWhat = "the optimizer CpuAdagrad";
  optim::require_parameters(kWhat, parameters);
  optim::require_flat(kWhat, parameters);
  optim::require_not_negative(kWhat, "lr", options.lr);
  optim::require_not_negative(kWhat, "eps", options.eps);
  optim::require_not_negative(kWhat, "weight_decay", options.weight_decay);
  optim::require_not_negative(kWhat, "lr_decay", options.lr_decay);
  optim::require_not_negative(kWhat, "initial_accumulator_value", options.initial_accumulator_value);
  const auto group = torch::optim::AdagradOptions(options.lr)
                         .lr_decay(options.lr_decay)
                         .eps(options.eps)
                         .weight_decay(options.weight_decay)
                         .initial_accumulator_value(options.initial_accumulator_value);
  return std::make_unique<optim::CpuAdagrad>(parameters, group);
}

}  // namespace lockstep
