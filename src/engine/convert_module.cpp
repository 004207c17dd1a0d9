#include "engine/convert_module.h"

#include <torch/torch.h>

namespace lockstep::engine {

void convert_floating_point(torch::nn::Module& module, c10::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  const auto convert = [dtype](at::Tensor tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
  };
  for (const at::Tensor& parameter : module.parameters()) convert(parameter);
  for (const at::Tensor& buffer : module.buffers()) convert(buffer);
}

}  // namespace lockstep::engine
