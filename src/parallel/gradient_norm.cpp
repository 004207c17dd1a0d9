#include "parallel/gradient_norm.h"

#include <ATen/ATen.h>

namespace lockstep::parallel {

at::Tensor total_norm(const std::vector<at::Tensor>& gradients, double norm_type,
                      std::optional<c10::ScalarType> at_least) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    std::optional<c10::ScalarType> dtype;
    if (at_least) dtype = at::promote_types(gradient.scalar_type(), *at_least);
    const at::Tensor norm = at::linalg_vector_norm(gradient, norm_type, {}, false, dtype);
    norms.push_back(norms.empty() ? norm : norm.to(norms.front().options()));
  }
  if (norms.empty()) return at::zeros({});
  return norms.size() == 1 ? norms.front() : at::linalg_vector_norm(at::stack(norms), norm_type);
}

void limit_norm(const std::vector<at::Tensor>& gradients, const at::Tensor& total, double max_norm) {
  // Always multiplied on a GPU, which then need not be waited for.
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  // The CPU has nothing to wait for: skip a pass over all gradients.
  if (factor.is_cpu() && factor.item<double>() == 1.0) return;
  for (const at::Tensor& gradient : gradients) gradient.mul_(factor.to(gradient.device()));
}

}  // namespace lockstep::parallel
