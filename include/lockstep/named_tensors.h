#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Tensors under names, in a fixed order: the parameters of a model in the order of
// their registration, or a state on its way to and from a checkpoint.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace lockstep
