#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

// Tensors under names, in a fixed order: the parameters of a model in the order of
// their registration, or a state on its way to and from a checkpoint.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The module's own tensors, not copies, each once: one that is registered under several
// names has the first of them.
NamedTensors named_parameters(const torch::nn::Module& module);
NamedTensors named_buffers(const torch::nn::Module& module);

}  // namespace lockstep
