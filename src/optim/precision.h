#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep::optim {

// Converts floating-point parameters and buffers to this dtype, in place; complex ones too if the dtype is
// complex, otherwise they stay complex. Module::to(dtype) would also convert index and mask buffers.
void convert_floating_point(torch::nn::Module& module, c10::ScalarType dtype);

// A tensor of a batch for a model of this dtype: floating-point numbers become of the dtype, or of its real
// dtype if it is complex; complex numbers become of a complex dtype. All else is returned as it is.
at::Tensor convert_input(const at::Tensor& tensor, c10::ScalarType dtype);

// float32, float64, bfloat16, float16, complex64 or complex128. ConfigError: another name.
c10::ScalarType parse_dtype(const std::string& name);

}  // namespace lockstep::optim
