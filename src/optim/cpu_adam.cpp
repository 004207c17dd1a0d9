#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/flat_step.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {

using torch::optim::OptimizerParamGroup;

template <typename State, typename Options>
void CpuAdamOptimizer<State, Options>::step_group(OptimizerParamGroup& group) {
  const auto& options = static_cast<const Options&>(group.options());
  require(!options.amsgrad(), "the optimizer CpuAdam", "amsgrad", "off", true);
  require_flat("the optimizer CpuAdam", group.params());
  for (const at::Tensor& parameter : group.params()) {
    if (parameter.grad().defined()) step_one_flat(*this, options, parameter, parameter.grad());
  }
}

template class CpuAdamOptimizer<torch::optim::AdamParamState, torch::optim::AdamOptions>;
template class CpuAdamOptimizer<torch::optim::AdamWParamState, torch::optim::AdamWOptions>;

namespace {

template <typename Optimizer, typename GroupOptions>
std::unique_ptr<torch::optim::Optimizer> make(const std::vector<at::Tensor>& parameters,
                                              const CpuAdamOptions& options) {
  const auto group = GroupOptions(options.lr)
                         .betas({options.beta1, options.beta2})
                         .eps(options.eps)
                         .weight_decay(options.weight_decay);
  return std::make_unique<Optimizer>(parameters, group);
}

}  // namespace
}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_cpu_adam(const std::vector<at::Tensor>& parameters,
                                                       const CpuAdamOptions& options) {
  constexpr auto kWhat = "the optimizer CpuAdam";
  optim::require_parameters(kWhat, parameters);
  optim::require_flat(kWhat, parameters);
  optim::require_adam_options(kWhat, options);
  return options.adam_w_mode ? optim::make<optim::CpuAdamW, torch::optim::AdamWOptions>(parameters, options)
                             : optim::make<optim::CpuAdam, torch::optim::AdamOptions>(parameters, options);
}

}  // namespace lockstep
