#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <numeric>
#include <optional>
#include <ostream>
#include <vector>

#include "base/check.h"

namespace lockstep {

namespace {

// Per-channel statistics of the batches of all ranks, in double.
struct BatchStatistics {
  at::Tensor mean;      // [channels]
  at::Tensor variance;  // [channels], divided by count
  at::Tensor count;     // scalar: values per channel, over all ranks
};

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

// One all-gather; blocks. Each rank's mean and squared deviations are combined by
// counts (Chan, Golub, LeVeque 1979), which does not cancel as sums of squares do.
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
    // The fused kernel of evaluation, with these statistics instead of the running ones.
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
      // A copy: the sums are reduced in place below.
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

// BatchNorm in training mode with the statistics of all ranks, differentiable in input, weight and bias.
// Weight and bias may be undefined. Returns the used statistics in `statistics`.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           double eps, const Communicator& communicator, BatchStatistics& statistics) {
  // Autograd takes an absent tensor as an empty optional, not as an undefined one.
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, optional(weight), optional(bias), eps, communicator, statistics);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator communicator)
    : options(options), communicator_(std::move(communicator)) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Communicator communicator,
                                     State state)
    : options(options), communicator_(std::move(communicator)) {
  adopt(std::move(state));
}

void SyncBatchNormImpl::reset() {
  const int64_t features = options.num_features();
  State state;
  if (options.affine()) {
    state.weight = at::ones({features}).requires_grad_();
    state.bias = at::zeros({features}).requires_grad_();
  }
  if (options.track_running_stats()) {
    state.running_mean = at::zeros({features});
    state.running_var = at::ones({features});
    state.num_batches_tracked = at::zeros({}, at::kLong);
  }
  adopt(std::move(state));
}

void SyncBatchNormImpl::adopt(State state) {
  const auto add_parameter = [this](const char* name, const torch::Tensor& tensor) {
    return register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = add_parameter("weight", state.weight);
  bias = add_parameter("bias", state.bias);
  running_mean = register_buffer("running_mean", state.running_mean);
  running_var = register_buffer("running_var", state.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", state.num_batches_tracked);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << std::boolalpha << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

// Counts this batch and returns the weight of its statistics in the running ones.
double SyncBatchNormImpl::next_momentum() {
  num_batches_tracked += 1;
  return options.momentum().has_value() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  if (input.dim() < 2 || input.dim() > 5 || input.size(1) != options.num_features()) {
    throw ConfigError("grad",
                      fmt::format("SyncBatchNorm wants an input [batch, {}, ...] of 2 to 5 dimensions: [{}]",
                                  options.num_features(), fmt::join(input.sizes(), ", ")));
  }
  const bool track = options.track_running_stats();
  if (!is_training() && track) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/false,
                          /*momentum=*/0.0, options.eps(), /*cudnn_enabled=*/true);
  }
  BatchStatistics statistics;
  torch::Tensor output = sync_batch_norm(input, weight, bias, options.eps(), communicator_, statistics);
  // Not checked on a GPU, which would have to be waited for; the variance is zero there.
  if (input.is_cpu() && statistics.count.item<double>() <= 1) {
    throw ConfigError("grad",
                      fmt::format("SyncBatchNorm needs more than one value per channel over all ranks to "
                                  "train: this rank's input is [{}]",
                                  fmt::join(input.sizes(), ", ")));
  }
  if (is_training() && track) {
    const torch::NoGradGuard no_grad;
    const double momentum = next_momentum();
    const auto& count = statistics.count;
    const torch::Tensor unbiased = statistics.variance * (count / (count - 1).clamp_min(1));
    running_mean.lerp_(statistics.mean.to(running_mean.scalar_type()), momentum);
    running_var.lerp_(unbiased.to(running_var.scalar_type()), momentum);
  }
  return output;
}

namespace {

using torch::nn::BatchNorm1dImpl;
using torch::nn::BatchNorm2dImpl;
using torch::nn::BatchNorm3dImpl;
using torch::nn::SequentialImpl;

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<BatchNorm1dImpl>() != nullptr || module.as<BatchNorm2dImpl>() != nullptr ||
         module.as<BatchNorm3dImpl>() != nullptr;
}

void collect_members(const torch::nn::Module& module, const std::string& prefix,
                     std::vector<std::string>& names) {
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (is_batch_norm(*child.value()) && module.as<SequentialImpl>() == nullptr) names.push_back(name);
    collect_members(*child.value(), name + ".", names);
  }
}

template <typename BatchNormImpl>
std::shared_ptr<SyncBatchNormImpl> replacement(const BatchNormImpl* from, const Communicator& communicator) {
  if (from == nullptr) return nullptr;
  auto to = std::make_shared<SyncBatchNormImpl>(
      from->options, communicator,
      SyncBatchNormImpl::State{from->weight, from->bias, from->running_mean, from->running_var,
                               from->num_batches_tracked});
  to->train(from->is_training());
  return to;
}

int convert_sequential(SequentialImpl& sequential, const Communicator& communicator) {
  int replaced = 0;
  const auto names = sequential.named_children().keys();
  auto name = names.begin();
  for (auto& slot : sequential) {
    const auto& module = *slot.ptr();
    auto sync = replacement(module.as<BatchNorm1dImpl>(), communicator);
    if (!sync) sync = replacement(module.as<BatchNorm2dImpl>(), communicator);
    if (!sync) sync = replacement(module.as<BatchNorm3dImpl>(), communicator);
    if (sync) {
      // What forward() calls, and what parameters() and save() see.
      slot = torch::nn::AnyModule(sync);
      sequential.replace_module(*name, sync);
      ++replaced;
    }
    ++name;
  }
  return replaced;
}

}  // namespace

int convert_sync_batch_norm(torch::nn::Module& module, const Communicator& communicator) {
  std::vector<std::string> members;
  collect_members(module, "", members);
  if (!members.empty()) {
    throw ConfigError("grad",
                      fmt::format("a BatchNorm that is a member of your own module cannot be replaced from "
                                  "outside; declare it as lockstep::SyncBatchNorm: {}",
                                  fmt::join(members, ", ")));
  }
  std::vector<int> ranks(static_cast<size_t>(communicator.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = communicator.subgroup(ranks);
  base::check(group.has_value(), "a subgroup of all ranks has this rank");
  int replaced = 0;
  for (const auto& child : module.modules()) {
    if (auto* sequential = child->as<SequentialImpl>()) replaced += convert_sequential(*sequential, *group);
  }
  return replaced;
}

}  // namespace lockstep
