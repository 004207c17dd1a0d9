#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/sync_batch_norm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <numeric>
#include <ostream>

#include "base/check.h"
#include "grad/batch_statistics.h"

namespace lockstep {

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

// Counts this batch; the weight of its statistics in the running ones.
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
  grad::BatchStatistics statistics;
  torch::Tensor output = grad::sync_batch_norm(input, weight, bias, options.eps(), communicator_, statistics);
  // A GPU is not waited for to say this; there the variance is zero.
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
