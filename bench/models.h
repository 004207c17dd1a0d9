#pragma once

#include <lockstep/models.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

namespace lockstep::bench {

enum class Loss { kSquaredError, kCrossEntropy, kNegativeLogLikelihood };

// One of the measured workloads: a model, its batch, its loss. Those that have a peer are in
// peers/workloads.py, too.
struct Workload {
  lockstep::Model model;
  torch::Tensor input;
  torch::Tensor target;
  Loss kind = Loss::kSquaredError;

  torch::Tensor loss() { return loss_of(model(input)); }

  torch::Tensor loss_of(const torch::Tensor& output) const {
    switch (kind) {
      case Loss::kSquaredError: return torch::mse_loss(output, target);
      case Loss::kCrossEntropy: return torch::cross_entropy_loss(output, target);
      case Loss::kNegativeLogLikelihood: return torch::nll_loss(output, target);
    }
    throw std::logic_error("no such loss");
  }
};

inline Workload make_workload(const std::string& name) {
  if (name == "sine") {
    const torch::Tensor x = torch::rand({16, 1});
    return {models::mlp({1, 16, 1}), x, torch::sin(2 * M_PI * x), Loss::kSquaredError};
  }
  if (name == "zero_mlp") {
    return {models::mlp({256, 512, 512, 10}), torch::rand({16, 256}), torch::randint(0, 10, {16}),
            Loss::kCrossEntropy};
  }
  if (name == "vit_small") {
    return {models::vision_transformer(models::VisionTransformerOptions::preset("small")),
            torch::rand({4, 3, 224, 224}), torch::randint(0, 1000, {4}), Loss::kCrossEntropy};
  }
  const torch::Tensor classes = torch::randint(0, 10, {64});
  if (name == "mlp") {
    return {models::mlp({64, 256, 256, 10}), torch::rand({64, 64}), classes, Loss::kCrossEntropy};
  }
  if (name == "cnn") {
    // Without its two dropouts, whose random draws would be measured in place of the step.
    // It ends with the log_softmax that the peer's cross_entropy does.
    return {models::princeton_cnn({.conv_dropout = 0, .fc_dropout = 0}), torch::rand({64, 1, 28, 28}),
            classes, Loss::kNegativeLogLikelihood};
  }
  throw std::invalid_argument("no workload " + name);
}

}  // namespace lockstep::bench
