#include <ATen/ATen.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>

#include "nn/kernels.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.to(type).reshape({-1, tensor.size(-1)}).contiguous();
}

at::Tensor with_rows(const at::Tensor& rows, at::IntArrayRef sizes) {
  std::vector<int64_t> result = sizes.vec();
  result.back() = rows.size(1);
  return rows.view(result);
}

// The gradient of a weight: that of a float32 weight is not rounded to 16 bits first.
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input, at::ScalarType type) {
  return type == at::kFloat ? at::mm(gradient.t(), input, at::kFloat) : at::mm(gradient.t(), input).to(type);
}

// What backward needs to know about the arguments.
struct Types {
  at::ScalarType input;
  at::ScalarType parameters;
  std::vector<int64_t> sizes;  // of the input
};

void save_types(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight) {
  context->saved_data["input"] = input.scalar_type();
  context->saved_data["parameters"] = weight.scalar_type();
  context->saved_data["sizes"] = input.sizes();
}

Types saved_types(AutogradContext* context) {
  return {context->saved_data["input"].toScalarType(), context->saved_data["parameters"].toScalarType(),
          context->saved_data["sizes"].toIntVector()};
}

class FusedLinear : public torch::autograd::Function<FusedLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, at::ScalarType type) {
    const at::Tensor rows = rows_of(input, type);
    const at::Tensor matrix = weight.to(type);
    context->set_materialize_grads(false);
    context->save_for_backward({rows, matrix});
    save_types(context, input, weight);
    return with_rows(at::addmm(bias.to(type), rows, matrix.t()), input.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("linear");
    variable_list result(4);
    if (!gradients[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const Types types = saved_types(context);
    const at::Tensor gradient = rows_of(gradients[0], saved[0].scalar_type());
    if (context->needs_input_grad(0)) {
      result[0] = at::mm(gradient, saved[1]).view(types.sizes).to(types.input);
    }
    if (context->needs_input_grad(1)) result[1] = weight_gradient(gradient, saved[0], types.parameters);
    if (context->needs_input_grad(2))
      result[2] = loaded_kernels()->column_sums(gradient).to(types.parameters);
    return result;
  }
};

class FusedGeluMlp : public torch::autograd::Function<FusedGeluMlp> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& in_weight,
                            const at::Tensor& in_bias, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, at::ScalarType type, const Kernels& kernels) {
    const at::Tensor rows = as_vectors(rows_of(input, type));
    const at::Tensor in = as_vectors(in_weight.to(type));
    const at::Tensor out = out_weight.to(type);
    const Kernels::GeluResult hidden = kernels.linear_gelu(rows, in, as_vectors(in_bias.to(type)));
    context->set_materialize_grads(false);
    context->save_for_backward({rows, in, out, hidden.before, hidden.output});
    save_types(context, input, in_weight);
    return with_rows(at::addmm(out_bias.to(type), hidden.output, out.t()), input.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("gelu_mlp");
    variable_list result(7);
    if (!gradients[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const Types types = saved_types(context);
    const at::Tensor gradient = rows_of(gradients[0], saved[0].scalar_type());
    const Kernels& kernels = *loaded_kernels();
    if (context->needs_input_grad(3)) result[3] = weight_gradient(gradient, saved[4], types.parameters);
    if (context->needs_input_grad(4)) result[4] = kernels.column_sums(gradient).to(types.parameters);
    at::Tensor hidden = at::mm(gradient, saved[2]);
    const at::Tensor bias = kernels.gelu_backward(hidden, saved[3]);
    if (context->needs_input_grad(1)) result[1] = weight_gradient(hidden, saved[0], types.parameters);
    if (context->needs_input_grad(2)) result[2] = bias.to(types.parameters);
    if (context->needs_input_grad(0)) {
      result[0] = at::mm(hidden, saved[1]).view(types.sizes).to(types.input);
    }
    return result;
  }
};

// The device of a layer, and the type in which it multiplies.
struct Place {
  c10::Device device;
  at::ScalarType type;
};

bool is_at(const Place& place, const at::Tensor& tensor) {
  return tensor.defined() && tensor.device() == place.device && type_of_products(tensor) == place.type;
}

// The kernels for a layer with this weight and bias, or null. Wrong shapes, types and devices are left to
// LibTorch, whose errors name them.
const Kernels* kernels_for_linear(const Place& place, int64_t inputs, const at::Tensor& weight,
                                  const at::Tensor& bias) {
  const bool fits = is_at(place, weight) && is_at(place, bias) &&
                    weight.scalar_type() == bias.scalar_type() && weight.dim() == 2 && bias.dim() == 1 &&
                    weight.numel() > 0 && weight.size(1) == inputs && bias.size(0) == weight.size(0);
  return fits ? kernels_on(place.device) : nullptr;
}

bool has_rows(const at::Tensor& input, at::ScalarType type) {
  return input.is_cuda() && input.dim() > 0 && input.numel() > 0 &&
         (type == at::kHalf || type == at::kBFloat16);
}

bool are_multiples_of_8(const at::Tensor& weight) {
  return weight.size(0) % 8 == 0 && weight.size(1) % 8 == 0;
}

}  // namespace

torch::Tensor linear(const torch::Tensor& input, const torch::Tensor& weight, const torch::Tensor& bias) {
  const at::ScalarType type = type_of_products(input);
  if (has_rows(input, type) &&
      kernels_for_linear({input.device(), type}, input.size(-1), weight, bias) != nullptr) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
    return FusedLinear::apply(input, weight, bias, type);
  }
  return at::linear(input, weight, bias);
}

torch::Tensor gelu_mlp(const torch::Tensor& input, const torch::Tensor& in_weight,
                       const torch::Tensor& in_bias, const torch::Tensor& out_weight,
                       const torch::Tensor& out_bias) {
  const at::ScalarType type = type_of_products(input);
  const Place place{input.device(), type};
  const Kernels* kernels =
      has_rows(input, type) ? kernels_for_linear(place, input.size(-1), in_weight, in_bias) : nullptr;
  if (kernels != nullptr && are_multiples_of_8(in_weight) &&
      kernels_for_linear(place, in_weight.size(0), out_weight, out_bias) != nullptr &&
      out_weight.scalar_type() == in_weight.scalar_type()) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
    return FusedGeluMlp::apply(input, in_weight, in_bias, out_weight, out_bias, type, *kernels);
  }
  return at::linear(at::gelu(at::linear(input, in_weight, in_bias), "tanh"), out_weight, out_bias);
}

}  // namespace lockstep::nn
