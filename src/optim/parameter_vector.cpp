#include <lockstep/error.h>
#include <lockstep/named_tensors.h>
#include <lockstep/parameter_vector.h>
#include <torch/torch.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (auto& [name, parameter] : named_parameters(module)) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace

int64_t num_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : trainable(module)) count += parameter.numel();
  return count;
}

at::Tensor get_parameters(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  at::Tensor vector = at::empty({num_parameters(module)}, at::kDouble);
  int64_t offset = 0;
  for (const at::Tensor& parameter : trainable(module)) {
    vector.narrow(0, offset, parameter.numel()).view(parameter.sizes()).copy_(parameter);
    offset += parameter.numel();
  }
  return vector;
}

void set_parameters(torch::nn::Module& module, const at::Tensor& vector) {
  const int64_t expected = num_parameters(module);
  if (vector.dim() != 1 || vector.numel() != expected) {
    throw ConfigError("optim",
                      fmt::format("the vector does not fit the module's {} trainable parameters: shape [{}]",
                                  expected, fmt::join(vector.sizes(), ", ")));
  }
  const torch::NoGradGuard no_grad;
  int64_t offset = 0;
  for (at::Tensor& parameter : trainable(module)) {
    parameter.copy_(vector.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
}

}  // namespace lockstep
