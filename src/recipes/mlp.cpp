#include <fmt/ranges.h>
#include <lockstep/models.h>
#include <torch/torch.h>

#include "recipes/model_input.h"

namespace lockstep::models {
namespace {

void add_activation(torch::nn::Sequential& layers, Activation activation) {
  switch (activation) {
    case Activation::kRelu: layers->push_back(torch::nn::ReLU()); break;
    case Activation::kGelu: layers->push_back(torch::nn::GELU()); break;
    case Activation::kTanh: layers->push_back(torch::nn::Tanh()); break;
  }
}

}  // namespace

Model mlp(const std::vector<int64_t>& sizes, Activation activation) {
  if (sizes.size() < 2) {
    throw ConfigError("models",
                      fmt::format("an MLP needs the size of its input and of its output: {} given: [{}]",
                                  sizes.size(), fmt::join(sizes, ", ")));
  }
  for (const int64_t size : sizes) require_positive("the MLP", "sizes", size);
  torch::nn::Sequential layers;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (i > 0) add_activation(layers, activation);
    layers->push_back(torch::nn::Linear(sizes[i], sizes[i + 1]));
  }
  return layers;
}

}  // namespace lockstep::models
