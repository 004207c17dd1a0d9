#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/kernels.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradient of a weight: that of a float32 weight is not rounded to 16 bits first.
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input, at::ScalarType type) {
  return type == at::kFloat ? at::mm(gradient.t(), input, at::kFloat) : at::mm(gradient.t(), input).to(type);
}

class FusedGeluMlp : public torch::autograd::Function<FusedGeluMlp> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& in_weight,
                            const at::Tensor& in_bias, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, at::ScalarType type, const Kernels& kernels) {
    const at::Tensor rows = input.to(type).reshape({-1, input.size(-1)}).contiguous();
    const at::Tensor in = in_weight.to(type).contiguous();
    const at::Tensor out = out_weight.to(type).contiguous();
    const Kernels::GeluResult hidden = kernels.linear_gelu(rows, in, in_bias.to(type).contiguous());
    const at::Tensor result = at::addmm(out_bias.to(type), hidden.output, out.t());
    context->save_for_backward({rows, in, out, hidden.before, hidden.output});
    context->saved_data["input"] = input.scalar_type();
    context->saved_data["parameters"] = in_weight.scalar_type();
    context->saved_data["sizes"] = input.sizes();
    std::vector<int64_t> sizes = input.sizes().vec();
    sizes.back() = out_bias.size(0);
    return result.view(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("gelu_mlp");
    variable_list result(7);
    if (!gradients[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const at::Tensor& in_weight = saved[1];
    const at::Tensor& out_weight = saved[2];
    const at::Tensor& hidden = saved[4];
    const at::ScalarType type = context->saved_data["parameters"].toScalarType();
    const at::Tensor gradient =
        gradients[0].to(rows.scalar_type()).reshape({-1, out_weight.size(0)}).contiguous();
    if (context->needs_input_grad(3)) result[3] = weight_gradient(gradient, hidden, type);
    if (context->needs_input_grad(4)) result[4] = gradient.sum(0, /*keepdim=*/false, type);
    const Kernels::GeluGradients before =
        loaded_kernels()->linear_gelu_backward(gradient, out_weight, saved[3]);
    if (context->needs_input_grad(1)) result[1] = weight_gradient(before.before, rows, type);
    if (context->needs_input_grad(2)) result[2] = before.bias.to(type);
    if (context->needs_input_grad(0)) {
      result[0] = at::mm(before.before, in_weight)
                      .view(context->saved_data["sizes"].toIntVector())
                      .to(context->saved_data["input"].toScalarType());
    }
    return result;
  }
};

// Null: the plain operations run.
const Kernels* kernels_for_mlp(const at::Tensor& input, const at::Tensor& in_weight,
                               const at::Tensor& in_bias, const at::Tensor& out_weight,
                               const at::Tensor& out_bias, at::ScalarType type) {
  if (!input.is_cuda() || input.numel() == 0 || input.dim() == 0) return nullptr;
  if (type != at::kHalf && type != at::kBFloat16) return nullptr;
  if (!input.is_floating_point() || in_weight.dim() != 2 || out_weight.dim() != 2) return nullptr;
  for (const at::Tensor& parameter : {in_weight, in_bias, out_weight, out_bias}) {
    if (!parameter.defined() || !parameter.is_cuda()) return nullptr;
    if (parameter.scalar_type() != in_weight.scalar_type()) return nullptr;
    for (const int64_t size : parameter.sizes()) {
      if (size == 0 || size % 8 != 0) return nullptr;
    }
  }
  // Wrong shapes are left to LibTorch, whose errors name them.
  const bool fits = input.size(-1) == in_weight.size(1) && in_bias.dim() == 1 && out_bias.dim() == 1 &&
                    in_bias.size(0) == in_weight.size(0) && out_weight.size(1) == in_weight.size(0) &&
                    out_bias.size(0) == out_weight.size(0);
  return fits ? loaded_kernels() : nullptr;
}

}  // namespace

torch::Tensor gelu_mlp(const torch::Tensor& input, const torch::Tensor& in_weight,
                       const torch::Tensor& in_bias, const torch::Tensor& out_weight,
                       const torch::Tensor& out_bias) {
  const at::ScalarType type = type_of_products(input);
  if (const Kernels* kernels = kernels_for_mlp(input, in_weight, in_bias, out_weight, out_bias, type)) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
    return FusedGeluMlp::apply(input, in_weight, in_bias, out_weight, out_bias, type, *kernels);
  }
  return at::linear(at::gelu(at::linear(input, in_weight, in_bias), "tanh"), out_weight, out_bias);
}

}  // namespace lockstep::nn
