#pragma once

#include <lockstep/models.h>
#include <torch/torch.h>

namespace lockstep::models {

// The class Net of Princeton's MNIST script.
class PrincetonCnn final : public torch::nn::Module {
 public:
  explicit PrincetonCnn(const PrincetonCnnOptions& options);
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::Dropout dropout1_;
  torch::nn::Dropout dropout2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace lockstep::models
