#include <fmt/format.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <lockstep/model.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include "torch_private/truncated_normal.h"

namespace lockstep {

at::Tensor Model::operator()(const at::Tensor& input) const { return forward_(input); }

void truncated_normal(const at::Tensor& tensor, double standard_deviation) {
  torch_private::truncated_normal(tensor, standard_deviation);
}

namespace {

at::Tensor accuracy(const at::Tensor& scores, const at::Tensor& target) {
  return scores.detach().argmax(1).eq(target).to(torch::kFloat32).mean();
}

}  // namespace

at::Tensor mse(const Batch& batch, const Model& model) {
  return torch::mse_loss(model(batch.data()), batch.target());
}

at::Tensor cross_entropy(const Batch& batch, const Model& model) {
  return torch::cross_entropy_loss(model(batch.data()), batch.target());
}

at::Tensor nll(const Batch& batch, const Model& model) {
  return torch::nll_loss(model(batch.data()), batch.target());
}

LossResult cross_entropy_with_accuracy(const Batch& batch, const Model& model) {
  const at::Tensor scores = model(batch.data());
  return {torch::cross_entropy_loss(scores, batch.target()),
          {{"accuracy", accuracy(scores, batch.target())}}};
}

LossResult nll_with_accuracy(const Batch& batch, const Model& model) {
  const at::Tensor scores = model(batch.data());
  return {torch::nll_loss(scores, batch.target()), {{"accuracy", accuracy(scores, batch.target())}}};
}

Loss loss_named(const std::string& name) {
  if (name == "mse") return mse;
  if (name == "cross_entropy") return cross_entropy;
  if (name == "nll") return nll;
  throw ConfigError(
      "train", fmt::format("unknown loss '{}': mse, cross_entropy and nll have names; any other one is a "
                           "function of a batch and a model",
                           name));
}

}  // namespace lockstep
