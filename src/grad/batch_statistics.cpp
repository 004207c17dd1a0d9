#include "grad/batch_statistics.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

namespace lockstep::grad {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All dimensions but the channels'.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// A vector of channels, shaped to broadcast against input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return values.view(shape);
}

at::ScalarType compute_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Communicator group) : communicator(std::move(group)) {}
  Communicator communicator;
};

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& optional_weight,
                            const std::optional<at::Tensor>& optional_bias, double eps,
                            const Communicator& communicator, BatchStatistics& statistics) {
    statistics = gather_statistics(input, communicator);
    const at::Tensor weight = optional_weight.value_or(at::Tensor());
    const at::Tensor bias = optional_bias.value_or(at::Tensor());
    const auto dtype = weight.defined() ? weight.scalar_type() : input.scalar_type();
    context->save_for_backward({input, weight, statistics.mean, statistics.variance, statistics.count});
    context->saved_data["eps"] = eps;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(communicator));
    // The fused kernel of evaluation, with these statistics in place of the running ones.
    return std::get<0>(at::native_batch_norm(input, weight, bias, statistics.mean.to(dtype),
                                             statistics.variance.to(dtype), /*training=*/false,
                                             /*momentum=*/0.0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const at::Tensor& count = saved[4];
    const auto dtype = compute_dtype(input);
    const auto dims = reduced_dims(input);
    const at::Tensor inverse_std = (variance + context->saved_data["eps"].toDouble()).rsqrt();
    const at::Tensor grad = grads[0].to(dtype);
    const at::Tensor centred = input.to(dtype) - per_channel(mean.to(dtype), input);

    // sums[0]: of the gradient; sums[1]: of the gradient times the centred input.
    const at::Tensor sums = at::stack({grad.sum(dims), (grad * centred).sum(dims)}).to(at::kDouble);
    variable_list result(6);
    if (weight.defined()) {
      result[1] = (sums[1] * inverse_std).to(weight.scalar_type());
      // A copy, since the sums are reduced in place below.
      result[2] = sums[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    const auto group = context->saved_data["group"].toCapsule();
    static_cast<GroupHolder&>(*group).communicator.all_reduce(sums).wait();

    const at::Tensor scale = weight.defined() ? inverse_std * weight.to(at::kDouble) : inverse_std;
    const at::Tensor mean_grad = sums[0] / count;
    const at::Tensor slope = sums[1] / count * inverse_std.square();
    const auto spread = [&](const at::Tensor& values) { return per_channel(values.to(dtype), input); };
    result[0] =
        ((grad - spread(mean_grad) - centred * spread(slope)) * spread(scale)).to(input.scalar_type());
    return result;
  }
};

}  // namespace

BatchStatistics gather_statistics(const at::Tensor& input, const Communicator& communicator) {
  const at::NoGradGuard no_grad;
  const int64_t channels = input.size(1);
  const int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const auto options = input.options().dtype(at::kDouble);

  // This rank's line: means, squared deviations, count.
  at::Tensor local = at::zeros({2 * channels + 1}, options);
  if (count > 0) {
    const auto [variance, mean] =
        at::var_mean(input.to(compute_dtype(input)), reduced_dims(input), /*correction=*/0);
    local.narrow(0, 0, channels).copy_(mean);
    local.narrow(0, channels, channels).copy_(variance).mul_(count);
    local[2 * channels].fill_(count);
  }
  at::Tensor all = at::empty({communicator.size() * local.numel()}, options);
  communicator.all_gather(all, local).wait();

  const at::Tensor lines = all.view({communicator.size(), local.numel()});
  const at::Tensor means = lines.narrow(1, 0, channels);
  const at::Tensor deviations = lines.narrow(1, channels, channels);
  const at::Tensor counts = lines.narrow(1, 2 * channels, 1);
  BatchStatistics statistics;
  statistics.count = counts.sum();
  statistics.mean = (means * counts).sum(0) / statistics.count;
  statistics.variance = (deviations + counts * (means - statistics.mean).square()).sum(0) / statistics.count;
  return statistics;
}

at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           double eps, const Communicator& communicator, BatchStatistics& statistics) {
  // Autograd takes an absent tensor as an empty optional, not as an undefined one.
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, optional(weight), optional(bias), eps, communicator, statistics);
}

}  // namespace lockstep::grad
