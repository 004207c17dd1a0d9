#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep::interop {

// Weights under their names, in the order of the file or of registration. Two names
// with one tensor are tied weights.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace lockstep::interop
