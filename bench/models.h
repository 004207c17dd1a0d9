#pragma once

#include <lockstep/model.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

namespace lockstep::bench {

// Princeton's MNIST network: 1,199,882 parameters. Without its two dropouts, whose
// random draws would be measured in place of the step.
struct PrincetonCnnImpl : torch::nn::Module {
  PrincetonCnnImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3)))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3)))),
        fc1(register_module("fc1", torch::nn::Linear(9216, 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1->forward(x));
    x = torch::relu(conv2->forward(x));
    x = torch::max_pool2d(x, 2).flatten(1);
    x = torch::relu(fc1->forward(x));
    return fc2->forward(x);
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(PrincetonCnn);

// One of the measured workloads: a model, its batch, its loss. The same three are in
// peers/workloads.py.
struct Workload {
  lockstep::Model model;
  torch::Tensor input;
  torch::Tensor target;
  bool classifies = false;

  torch::Tensor loss() {
    const torch::Tensor output = model(input);
    return classifies ? torch::cross_entropy_loss(output, target) : torch::mse_loss(output, target);
  }
};

inline Workload make_workload(const std::string& name) {
  namespace nn = torch::nn;
  if (name == "sine") {
    const torch::Tensor x = torch::rand({16, 1});
    return {nn::Sequential(nn::Linear(1, 16), nn::ReLU(), nn::Linear(16, 1)), x, torch::sin(2 * M_PI * x),
            false};
  }
  const torch::Tensor classes = torch::randint(0, 10, {64});
  if (name == "mlp") {
    return {nn::Sequential(nn::Linear(64, 256), nn::ReLU(), nn::Linear(256, 256), nn::ReLU(),
                           nn::Linear(256, 10)),
            torch::rand({64, 64}), classes, true};
  }
  if (name == "cnn") return {PrincetonCnn(), torch::rand({64, 1, 28, 28}), classes, true};
  throw std::invalid_argument("no workload " + name);
}

}  // namespace lockstep::bench
