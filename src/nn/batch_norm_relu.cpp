#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <ostream>

#include "nn/kernels.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

class FusedBatchNormRelu : public torch::autograd::Function<FusedBatchNormRelu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const std::optional<at::Tensor>& shortcut,
                            const std::optional<at::Tensor>& shortcut_bias, const Kernels& kernels,
                            const Kernels::Norm& norm) {
    const Kernels::NormResult result = kernels.batch_norm_relu(input, norm, shortcut.value_or(at::Tensor()),
                                                               shortcut_bias.value_or(at::Tensor()));
    context->set_materialize_grads(false);
    context->save_for_backward({input, result.statistics, result.key});
    context->saved_data["dropout"] = norm.dropout;
    context->saved_data["with_shortcut"] = shortcut.has_value();
    context->saved_data["with_shortcut_bias"] = shortcut_bias.has_value();
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("BatchNormRelu");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    variable_list result(7);
    if (!gradients[0].defined()) return result;
    const at::Tensor gradient = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    Kernels::NormGradients own = loaded_kernels()->batch_norm_relu_backward(
        gradient, input, saved[1], saved[2], context->saved_data["dropout"].toDouble(),
        context->needs_input_grad(0), context->saved_data["with_shortcut_bias"].toBool());
    result[0] = std::move(own.input);
    result[1] = std::move(own.weight);
    result[2] = std::move(own.bias);
    if (context->saved_data["with_shortcut"].toBool()) result[3] = gradient;
    result[4] = std::move(own.shortcut_bias);
    return result;
  }
};

bool is_plain_float(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device() == like.device() &&
         tensor.is_contiguous();
}

// Whether autograd records what is computed from these tensors.
bool needs_gradient(std::initializer_list<at::Tensor> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
}

// The kernels for this layer and this input, or null.
const Kernels* kernels_for_norm(const BatchNormReluImpl& norm, const at::Tensor& input,
                                const at::Tensor& shortcut, const at::Tensor& shortcut_bias) {
  const bool evaluates = !norm.is_training() && norm.running_mean.defined();
  if (evaluates && needs_gradient({input, norm.weight, norm.bias, shortcut, shortcut_bias})) return nullptr;
  if (!evaluates && (!norm.is_training() || !norm.options.momentum().has_value())) return nullptr;
  if (!is_plain_float(norm.weight, input) || !is_plain_float(norm.bias, input)) return nullptr;
  if (norm.running_mean.defined() &&
      !(is_plain_float(norm.running_mean, input) && is_plain_float(norm.running_var, input))) {
    return nullptr;
  }
  if (norm.num_batches_tracked.defined() && norm.num_batches_tracked.device() != input.device())
    return nullptr;
  if (shortcut.defined() && (shortcut.sizes() != input.sizes() || shortcut.device() != input.device()))
    return nullptr;
  if (shortcut_bias.defined() && !is_plain_float(shortcut_bias, input)) return nullptr;
  // One value for each channel: LibTorch has the error.
  if (norm.is_training() && input.numel() <= input.size(1)) return nullptr;
  return kernels_for(input);
}

}  // namespace

BatchNormReluImpl::BatchNormReluImpl(const BatchNormReluOptions& options)
    : NormImplBase<2, BatchNormReluImpl, BatchNormReluOptions>(options) {
  if (!(options.dropout() >= 0 && options.dropout() <= 1)) {
    throw ConfigError(
        "nn", fmt::format("BatchNormRelu: dropout must be a probability, 0 to 1: {}", options.dropout()));
  }
}

void BatchNormReluImpl::_check_input_dim(const torch::Tensor& input) {
  if (input.dim() == 4 && input.size(1) == options.num_features()) return;
  throw ConfigError("nn", fmt::format("BatchNormRelu: the input must be [batch, {}, height, width]: [{}]",
                                      options.num_features(), fmt::join(input.sizes(), ", ")));
}

torch::Tensor BatchNormReluImpl::forward(const torch::Tensor& input, const torch::Tensor& shortcut,
                                         const torch::Tensor& shortcut_bias) {
  _check_input_dim(input);
  if (const Kernels* kernels = kernels_for_norm(*this, input, shortcut, shortcut_bias)) {
    const Kernels::Norm norm{.weight = weight.detach(),
                             .bias = bias.detach(),
                             .running_mean = running_mean,
                             .running_var = running_var,
                             .num_batches_tracked = num_batches_tracked,
                             .momentum = *options.momentum(),
                             .eps = options.eps(),
                             .dropout = options.dropout()};
    const auto plain = [&](const at::Tensor& image) {
      return image.to(input.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
    };
    if (!is_training()) {
      const at::Tensor scale = weight * (running_var + options.eps()).rsqrt();
      return kernels->scale_relu(plain(input), scale, at::addcmul(bias, running_mean, scale, -1),
                                 shortcut.defined() ? plain(shortcut) : shortcut, shortcut_bias);
    }
    return FusedBatchNormRelu::apply(plain(input), weight, bias,
                                     if_defined(shortcut.defined() ? plain(shortcut) : shortcut),
                                     if_defined(shortcut_bias), *kernels, norm);
  }
  // What torch::nn::BatchNorm2d does.
  double momentum = options.momentum().value_or(0);
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum().has_value()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  torch::Tensor output = torch::relu(torch::nn::functional::detail::batch_norm(
      input, running_mean, running_var, weight, bias, is_training() || !options.track_running_stats(),
      momentum, options.eps()));
  output = torch::dropout(output, options.dropout(), is_training());
  if (!shortcut.defined()) return output;
  return output + (shortcut_bias.defined() ? shortcut + shortcut_bias.view({1, -1, 1, 1}) : shortcut);
}

void BatchNormReluImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::nn::BatchNormRelu(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << std::boolalpha << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ", dropout=" << options.dropout()
         << ')';
}

}  // namespace lockstep::nn
