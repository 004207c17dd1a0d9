#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/json.h>
#include <lockstep/weights.h>

#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace lockstep::optim {

// The state that the optimizer keeps for one parameter: tensors of its shape, not copies, in a fixed
// order. Empty before the first step.
std::vector<at::Tensor> state_tensors(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

// The most tensors that state_tensors() will return for a parameter with these options; -1: the class is
// not known.
int max_state_tensors(const torch::optim::Optimizer& optimizer,
                      const torch::optim::OptimizerOptions& options);

// False: a class of LibTorch's or ours that would square complex gradients instead of their real and
// imaginary parts, or cannot step complex parameters. Classes of programs count as able.
bool supports_complex(const torch::optim::Optimizer& optimizer);

// Loads the saved state of one parameter, independent of the others: `values`, and the tensors
// "NAME/FIELD". REQUIRES: the optimizer is of a known class. ConfigError: a tensor is missing, or is
// neither a scalar nor of the parameter's shape and dtype; the optimizer is unchanged then.
void load_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const std::string& name,
                   const Json& values, const NamedTensors& tensors);

}  // namespace lockstep::optim
