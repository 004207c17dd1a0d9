#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep::optim {

// Converts floating-point parameters and buffers to this dtype, in place. Module::to(dtype) would also
// convert index and mask buffers.
void convert_floating_point(torch::nn::Module& module, c10::ScalarType dtype);

// float32, float64, bfloat16 or float16. ConfigError: another name.
c10::ScalarType parse_dtype(const std::string& name);

}  // namespace lockstep::optim
