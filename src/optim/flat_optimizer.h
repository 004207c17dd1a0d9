#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "optim/flat_step.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace lockstep::optim {

// One step of one parameter by the kernels of flat_kernels.h in place of the optimizer's
// own, on its own state; `options` are those of the parameter's group. The gradient may be
// float32, bfloat16 or float16. False, and nothing is done: the optimizer is none of torch::optim's SGD,
// Adam, AdamW and Adagrad and ours of make_cpu_adam, make_cpu_adagrad and make_lion, has an option that the
// kernels lack, or the parameter is not flat float32 memory on the CPU.
bool step_one_flat(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
                   const at::Tensor& parameter, const at::Tensor& gradient, const FlatExtras& extras = {});

// What the optimizer keeps of a parameter: tensors of its shape, its own ones, in a fixed
// order. Empty before the first step.
std::vector<at::Tensor> state_tensors(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

// How many of these a parameter will have at most; -1: a class that is not known.
int max_state_tensors(const torch::optim::Optimizer& optimizer,
                      const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::optim
