#pragma once

#include <cstdint>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace lockstep {

// The trainable parameters (requires_grad) of a module as one vector, in the order of
// registration.

int64_t num_parameters(const torch::nn::Module& module);

// A copy: one dimension, float64 on the CPU whatever the parameters are, so that no
// parameter loses digits.
at::Tensor get_parameters(const torch::nn::Module& module);

// Copies `vector` into the parameters, converting to their dtypes and devices.
// ConfigError: it has not exactly num_parameters() elements in one dimension.
void set_parameters(torch::nn::Module& module, const at::Tensor& vector);

}  // namespace lockstep
