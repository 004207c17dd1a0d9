#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace lockstep {

struct Batch;
class Model;

// What a loss gives: the loss itself, a scalar that is the mean over the batch's samples,
// with a graph that leads to the model's parameters; and metrics by name, scalars that
// are means over the samples too.
struct LossResult {
  LossResult(at::Tensor loss_, std::map<std::string, at::Tensor> metrics_ = {})  // NOLINT: implicit
      : loss(std::move(loss_)), metrics(std::move(metrics_)) {}

  at::Tensor loss;
  std::map<std::string, at::Tensor> metrics;
};

// A function of a batch and a model that returns a tensor or a LossResult.
using Loss = std::function<LossResult(const Batch&, const Model&)>;

// batch.data() through the model against batch.target().
at::Tensor mse(const Batch& batch, const Model& model);
// Targets are class indices, outputs unnormalised scores.
at::Tensor cross_entropy(const Batch& batch, const Model& model);
// Targets are class indices, outputs log-probabilities.
at::Tensor nll(const Batch& batch, const Model& model);

// One of these by its name: "mse", "cross_entropy", "nll". ConfigError names them.
Loss loss_named(const std::string& name);

// The same loss with the metric "accuracy": the share of samples whose highest output is
// the target. The model runs once.
LossResult cross_entropy_with_accuracy(const Batch& batch, const Model& model);
LossResult nll_with_accuracy(const Batch& batch, const Model& model);

}  // namespace lockstep
