#pragma once

// What tests of ShardedModel train with, and what they keep of it.

#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

using MakeOptimizer = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<at::Tensor>);

inline std::unique_ptr<torch::optim::Optimizer> make_adagrad(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::Adagrad>(
      std::move(parameters), torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
}

// A class that ShardedModel has never heard of.
class UnknownOptimizer : public torch::optim::SGD {
 public:
  using SGD::SGD;
};

// What a checkpoint would hold: whole tensors by name, gathered from shards.
struct SavedParts {
  std::mutex mutex;
  std::map<std::string, at::Tensor> tensors;
  std::string values;
  bool has_masters = false;

  void add(const std::vector<ShardedModel::Part>& parts, const std::string& prefix) {
    const std::lock_guard lock(mutex);
    for (const auto& part : parts) {
      at::Tensor& whole = tensors[prefix + part.name];
      if (!whole.defined()) whole = at::full(part.shape, std::nan(""), part.data.options());
      whole.view(-1).narrow(0, part.first, part.data.numel()).copy_(part.data);
    }
  }
  void take(const ShardedModel& model) {
    add(model.parameter_parts(), "");
    if (model.has_masters()) add(model.master_parts(), "master:");
    const auto optimizer = model.optimizer_parts();
    add(optimizer.parts, "");
    const std::lock_guard lock(mutex);
    values = optimizer.values;
    has_masters = model.has_masters();
  }
  ShardedModel::ReadParts reader(const std::string& prefix = "") const {
    return [this, prefix](const std::vector<ShardedModel::Part>& parts) {
      for (const auto& part : parts) {
        part.data.copy_(tensors.at(prefix + part.name).view(-1).narrow(0, part.first, part.data.numel()));
      }
    };
  }
  void give(ShardedModel& model) const {
    model.load_parameters(reader(), has_masters ? reader("master:") : ShardedModel::ReadParts());
    model.load_optimizer(values, reader());
  }
};

}  // namespace lockstep::test
