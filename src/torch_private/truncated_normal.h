#pragma once

// Python's nn.init.trunc_normal_, which LibTorch lacks.

#include <torch/torch.h>
#include <torch/version.h>

#include <cmath>

namespace lockstep::torch_private {

// Fills the tensor as PyTorch of LibTorch's version does, bit for bit, with mean 0 and bounds of
// -2 and 2. `standard_deviation` is 1 at most.
inline void truncated_normal(at::Tensor tensor, double standard_deviation) {
  constexpr double kBound = 2;
  const torch::NoGradGuard no_grad;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
  const auto cumulative = [](double x) { return (1.0 + std::erf(x / std::sqrt(2.0))) / 2.0; };
  tensor.uniform_(2 * cumulative(-kBound / standard_deviation) - 1,
                  2 * cumulative(kBound / standard_deviation) - 1);
  tensor.erfinv_().mul_(standard_deviation * std::sqrt(2.0)).add_(0.0).clamp_(-kBound, kBound);
#else
  // As Python does: draws again for all elements, and replaces those that are out of bounds.
  tensor.normal_(0, standard_deviation);
  for (at::Tensor outside = tensor.abs() > kBound; outside.any().item<bool>();
       outside = tensor.abs() > kBound) {
    tensor.copy_(torch::where(outside, torch::empty_like(tensor).normal_(0, standard_deviation), tensor));
  }
#endif
}

}  // namespace lockstep::torch_private
