#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/normalization.h>

#include <optional>
#include <ostream>

#include "nn/kernels.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the output and, with a branch, the sum.
class FusedLayerNorm : public torch::autograd::Function<FusedLayerNorm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const std::optional<at::Tensor>& branch, const at::Tensor& weight,
                               const at::Tensor& bias, double eps, at::ScalarType type,
                               const Kernels& kernels) {
    const Kernels::LayerNormResult result =
        kernels.layer_norm(input, branch.value_or(at::Tensor()), weight, bias, eps, type);
    context->set_materialize_grads(false);
    context->save_for_backward({result.sum, weight, result.statistics});
    context->saved_data["with_branch"] = branch.has_value();
    return branch.has_value() ? variable_list{result.output, result.sum} : variable_list{result.output};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("LayerNorm");
    const variable_list saved = context->get_saved_variables();
    const bool with_branch = context->saved_data["with_branch"].toBool();
    const at::Tensor of_sum = with_branch ? gradients[1] : at::Tensor();
    variable_list result(7);
    if (!gradients[0].defined()) {  // only the sum was used
      if (with_branch) result[0] = result[1] = of_sum;
      return result;
    }
    Kernels::LayerNormGradients own = loaded_kernels()->layer_norm_backward(
        as_vectors(gradients[0]), of_sum.defined() ? as_vectors(of_sum) : of_sum, saved[0], saved[1],
        saved[2], with_branch);
    result[0] = std::move(own.input);
    result[1] = std::move(own.branch);
    result[2] = std::move(own.weight);
    result[3] = std::move(own.bias);
    return result;
  }
};

const Kernels* kernels_for_rows(const LayerNormImpl& norm, const at::Tensor& input,
                                const at::Tensor& branch) {
  if (!input.is_cuda() || input.numel() == 0 || norm.options.normalized_shape().size() != 1) return nullptr;
  const int64_t size = norm.options.normalized_shape()[0];
  if (size % 8 != 0 || size > Kernels::kMaxNormalized || input.dim() == 0 || input.size(-1) != size)
    return nullptr;
  const at::ScalarType type = type_of_products(input);
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) return nullptr;
  if (input.scalar_type() != at::kFloat && input.scalar_type() != type) return nullptr;
  const auto fits = [&](const at::Tensor& tensor, at::ScalarType its_type) {
    return tensor.scalar_type() == its_type && tensor.device() == input.device() && is_vectors(tensor);
  };
  if (!is_vectors(input)) return nullptr;
  for (const at::Tensor& parameter : {norm.weight, norm.bias}) {
    if (!parameter.defined() || !fits(parameter, at::kFloat)) return nullptr;
  }
  if (branch.defined() && (branch.sizes() != input.sizes() || !fits(branch, type))) return nullptr;
  return kernels_on(input.device());
}

}  // namespace

LayerNormImpl::LayerNormImpl(const torch::nn::LayerNormOptions& options) : options(options) {
  LayerNormImpl::reset();
}

void LayerNormImpl::reset() {
  const auto& shape = options.normalized_shape();
  const bool affine = options.elementwise_affine();
  weight = register_parameter("weight", affine ? at::ones(shape) : at::Tensor(), affine);
  bias = register_parameter("bias", affine ? at::zeros(shape) : at::Tensor(), affine);
}

void LayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::LayerNorm(" << at::IntArrayRef(options.normalized_shape())
         << ", eps=" << options.eps() << ", elementwise_affine=" << options.elementwise_affine() << ')';
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& input) {
  if (const Kernels* kernels = kernels_for_rows(*this, input, {})) {
    return FusedLayerNorm::apply(input, std::optional<at::Tensor>(), weight, bias, options.eps(),
                                 type_of_products(input), *kernels)[0];
  }
  return at::layer_norm(input, options.normalized_shape(), weight, bias, options.eps());
}

LayerNormImpl::Sum LayerNormImpl::add(const torch::Tensor& input, const torch::Tensor& branch) {
  if (const Kernels* kernels = kernels_for_rows(*this, input, branch)) {
    const variable_list both = FusedLayerNorm::apply(input, std::optional(branch), weight, bias,
                                                     options.eps(), type_of_products(input), *kernels);
    return {both[1], both[0]};
  }
  const torch::Tensor sum = input + branch;
  return {sum, forward(sum)};
}

}  // namespace lockstep::nn
