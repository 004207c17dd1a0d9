#include "engine/operation_cost.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

namespace lockstep::engine {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;
using Rule = Cost (*)(Inputs inputs);

bool is_tensor(Inputs inputs, size_t index) {
  return index < inputs.size() && inputs[index].isTensor() && inputs[index].toTensor().defined();
}

int64_t numel(Inputs inputs, size_t index) {
  return is_tensor(inputs, index) ? inputs[index].toTensor().numel() : 1;
}

Cost of_macs(int64_t macs, int64_t others = 0) { return {2 * macs + others, macs}; }

Cost element_wise(Inputs inputs) { return {numel(inputs, 0), 0}; }

Cost linear(Inputs inputs) { return of_macs(numel(inputs, 0) * inputs[1].toTensor().size(0)); }

// Of the left operand each element meets each column of the right one.
int64_t product_macs(const at::Tensor& left, const at::Tensor& right) {
  return left.numel() * (right.dim() > 1 ? right.size(-1) : 1);
}

Cost product(Inputs inputs) { return of_macs(product_macs(inputs[0].toTensor(), inputs[1].toTensor())); }

// A vector is the bias of a linear layer, which is not counted there either.
Cost product_and_sum(Inputs inputs) {
  const int64_t sums = inputs[0].toTensor().dim() > 1 ? numel(inputs, 0) : 0;
  return of_macs(product_macs(inputs[1].toTensor(), inputs[2].toTensor()), sums);
}

// Each input element meets the kernel of each output channel. The bias is not counted: the
// output's extent is not among the inputs.
Cost transposed_convolution(Inputs inputs) {
  const at::Tensor& weight = inputs[1].toTensor();
  return of_macs(numel(inputs, 0) * (weight.numel() / weight.size(0)));
}

// input, weight, bias, stride, padding, dilation, and "transposed" of the general operator.
// Each output is a product with the kernel.
Cost convolution(Inputs inputs) {
  if (inputs.size() > 6 && inputs[6].isBool() && inputs[6].toBool()) return transposed_convolution(inputs);
  const at::Tensor& input = inputs[0].toTensor();
  const at::Tensor& weight = inputs[1].toTensor();
  const int64_t spatial = weight.dim() - 2;
  const bool is_batched = input.dim() == weight.dim();
  int64_t positions = is_batched ? input.size(0) : 1;
  const auto at_dim = [&](size_t argument, int64_t dim, int64_t otherwise) {
    if (argument >= inputs.size() || !inputs[argument].isIntList()) return otherwise;
    const auto values = inputs[argument].toIntVector();
    if (values.empty()) return otherwise;
    return values[std::min(static_cast<size_t>(dim), values.size() - 1)];
  };
  for (int64_t dim = 0; dim < spatial; ++dim) {
    const int64_t extent = input.size(dim - spatial);
    const int64_t reach = at_dim(5, dim, 1) * (weight.size(dim + 2) - 1);
    // A padding given by name: "same" keeps the extent, "valid" adds nothing.
    int64_t padded = 2 * at_dim(4, dim, 0);
    if (inputs.size() > 4 && inputs[4].isString()) padded = inputs[4].toStringRef() == "same" ? reach : 0;
    positions *= (extent + padded - reach - 1) / at_dim(3, dim, 1) + 1;
  }
  const int64_t outputs = positions * weight.size(0);
  return of_macs(positions * weight.numel(), is_tensor(inputs, 2) ? outputs : 0);
}

Cost attention(Inputs inputs) {
  const at::Tensor& query = inputs[0].toTensor();
  const at::Tensor& key = inputs[1].toTensor();
  const at::Tensor& value = inputs[2].toTensor();
  const int64_t pairs = query.numel() / query.size(-1) * key.size(-2);
  return of_macs(pairs * query.size(-1) + pairs * value.size(-1));
}

Cost norm_with_weight_at(Inputs inputs, size_t weight) {
  return {numel(inputs, 0) * (is_tensor(inputs, weight) ? 5 : 4), 0};
}

// input, weight, bias, running_mean, running_var, training
Cost batch_norm(Inputs inputs) {
  const bool trains = inputs.size() > 5 && inputs[5].isBool() && inputs[5].toBool();
  if (trains) return norm_with_weight_at(inputs, 1);
  return {numel(inputs, 0) * (is_tensor(inputs, 1) ? 2 : 1), 0};
}

Cost instance_norm(Inputs inputs) { return norm_with_weight_at(inputs, 1); }
Cost layer_norm(Inputs inputs) { return norm_with_weight_at(inputs, 2); }

// The larger operand: the other one is repeated over it.
Cost broadcast_pair(Inputs inputs) { return {std::max(numel(inputs, 0), numel(inputs, 1)), 0}; }

// Counted as nothing, and so is what it calls.
Cost nothing(Inputs) { return {}; }

struct Named {
  std::string_view op;
  Rule rule;
};

constexpr std::array kRules = {
    Named{"aten::linear", linear},
    Named{"aten::matmul", product},
    Named{"aten::mm", product},
    Named{"aten::bmm", product},
    Named{"aten::mv", product},
    Named{"aten::addmm", product_and_sum},
    Named{"aten::baddbmm", product_and_sum},
    Named{"aten::conv1d", convolution},
    Named{"aten::conv2d", convolution},
    Named{"aten::conv3d", convolution},
    Named{"aten::convolution", convolution},
    Named{"aten::conv_transpose1d", transposed_convolution},
    Named{"aten::conv_transpose2d", transposed_convolution},
    Named{"aten::conv_transpose3d", transposed_convolution},
    Named{"aten::scaled_dot_product_attention", attention},
    Named{"aten::batch_norm", batch_norm},
    Named{"aten::instance_norm", instance_norm},
    Named{"aten::layer_norm", layer_norm},
    Named{"aten::group_norm", layer_norm},
    Named{"aten::relu", element_wise},
    Named{"aten::relu_", element_wise},
    Named{"aten::relu6", element_wise},
    Named{"aten::prelu", element_wise},
    Named{"aten::elu", element_wise},
    Named{"aten::elu_", element_wise},
    Named{"aten::leaky_relu", element_wise},
    Named{"aten::leaky_relu_", element_wise},
    Named{"aten::silu", element_wise},
    Named{"aten::silu_", element_wise},
    Named{"aten::gelu", element_wise},
    Named{"aten::tanh", element_wise},
    Named{"aten::sigmoid", element_wise},
    Named{"aten::softmax", element_wise},
    Named{"aten::log_softmax", element_wise},
    Named{"aten::max_pool1d", element_wise},
    Named{"aten::max_pool2d", element_wise},
    Named{"aten::max_pool3d", element_wise},
    Named{"aten::avg_pool1d", element_wise},
    Named{"aten::avg_pool2d", element_wise},
    Named{"aten::avg_pool3d", element_wise},
    Named{"aten::adaptive_avg_pool1d", element_wise},
    Named{"aten::adaptive_avg_pool2d", element_wise},
    Named{"aten::adaptive_avg_pool3d", element_wise},
    Named{"aten::adaptive_max_pool1d", element_wise},
    Named{"aten::adaptive_max_pool2d", element_wise},
    Named{"aten::adaptive_max_pool3d", element_wise},
    Named{"aten::dropout", nothing},
    Named{"aten::dropout_", nothing},
    Named{"aten::feature_dropout", nothing},
    Named{"aten::embedding", nothing},
    Named{"aten::add", broadcast_pair},
    Named{"aten::add_", broadcast_pair},
    Named{"aten::sub", broadcast_pair},
    Named{"aten::sub_", broadcast_pair},
    Named{"aten::mul", broadcast_pair},
    Named{"aten::mul_", broadcast_pair},
    Named{"aten::div", broadcast_pair},
    Named{"aten::div_", broadcast_pair},
};

}  // namespace

std::optional<Cost> cost_of(std::string_view op, Inputs inputs) {
  const auto* found =
      std::find_if(kRules.begin(), kRules.end(), [&](const Named& named) { return named.op == op; });
  if (found == kRules.end() || !is_tensor(inputs, 0)) return std::nullopt;
  return found->rule(inputs);
}

}  // namespace lockstep::engine
