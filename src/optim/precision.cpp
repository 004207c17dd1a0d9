#include "optim/precision.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

namespace lockstep::optim {

void convert_floating_point(torch::nn::Module& module, c10::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  const auto convert = [dtype](const at::Tensor& tensor) {
    if (tensor.is_floating_point() || (tensor.is_complex() && c10::isComplexType(dtype))) {
      tensor.set_data(tensor.to(dtype));
    }
  };
  for (const at::Tensor& parameter : module.parameters()) convert(parameter);
  for (const at::Tensor& buffer : module.buffers()) convert(buffer);
}

at::Tensor convert_input(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (tensor.is_floating_point()) return tensor.to(c10::toRealValueType(dtype));
  return tensor.is_complex() && c10::isComplexType(dtype) ? tensor.to(dtype) : tensor;
}

c10::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return c10::ScalarType::Float;
  if (name == "float64") return c10::ScalarType::Double;
  if (name == "bfloat16") return c10::ScalarType::BFloat16;
  if (name == "float16") return c10::ScalarType::Half;
  if (name == "complex64") return c10::ScalarType::ComplexFloat;
  if (name == "complex128") return c10::ScalarType::ComplexDouble;
  throw ConfigError("config", fmt::format("dtype must be one of float32, float64, bfloat16, float16, "
                                          "complex64, complex128: '{}'",
                                          name));
}

}  // namespace lockstep::optim
