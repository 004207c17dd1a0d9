#include "support/formula.h"

#include <torch/torch.h>

#include <cstring>

namespace lockstep::test {

at::Tensor formula(at::IntArrayRef sizes, int64_t salt) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const auto i = torch::arange(numel, torch::kLong);
  const auto mixed = ((i * 40503 + salt * 9973 + 7) * 25173 + 13849).remainder(65536);
  return (mixed.to(torch::kFloat) / 65536 - 0.5).view(sizes);
}

at::Tensor trained_formula(at::IntArrayRef sizes, int64_t salt) {
  return formula(sizes, salt).set_requires_grad(true);
}

at::Tensor batch_of(int rank, int step) { return formula({4, 3}, 100 + 10 * step + rank); }

void set_parameters(torch::nn::Module& module, int64_t salt) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    const int64_t fan_in =
        parameter.dim() > 1 ? parameter.numel() / std::max<int64_t>(parameter.size(0), 1) : 1;
    double scale = 2.0;
    for (int64_t power = 1; power < fan_in; power *= 4) scale /= 2;
    parameter.copy_(formula(parameter.sizes(), salt++) * scale);
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto x = a.cpu().contiguous(), y = b.cpu().contiguous();
  // Empty tensors may have no memory, which memcmp() does not accept.
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace lockstep::test
