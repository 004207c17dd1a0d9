#include <lockstep/models.h>
#include <torch/torch.h>

#include "recipes/model_input.h"

namespace lockstep::models {
namespace {

constexpr auto kPrincetonCnn = "Princeton's CNN";

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

PrincetonCnn::PrincetonCnn(const PrincetonCnnOptions& options)
    : conv1_(register_module("conv1", torch::nn::Conv2d(1, 32, 3))),
      conv2_(register_module("conv2", torch::nn::Conv2d(32, 64, 3))),
      dropout1_(register_module("dropout1", torch::nn::Dropout(options.conv_dropout))),
      dropout2_(register_module("dropout2", torch::nn::Dropout(options.fc_dropout))),
      fc1_(register_module("fc1", torch::nn::Linear(64 * 12 * 12, 128))),
      fc2_(register_module("fc2", torch::nn::Linear(128, 10))) {}

at::Tensor PrincetonCnn::forward(const at::Tensor& images) {
  check_images({kPrincetonCnn, 1, 28, 28}, images);
  at::Tensor x = torch::relu(conv1_->forward(images));
  x = torch::relu(conv2_->forward(x));
  x = dropout1_->forward(torch::max_pool2d(x, 2));
  x = torch::relu(fc1_->forward(torch::flatten(x, 1)));
  return torch::log_softmax(fc2_->forward(dropout2_->forward(x)), 1);
}

}  // namespace

Model princeton_cnn(const PrincetonCnnOptions& options) {
  require_probability(kPrincetonCnn, "conv_dropout", options.conv_dropout);
  require_probability(kPrincetonCnn, "fc_dropout", options.fc_dropout);
  return std::make_shared<PrincetonCnn>(options);
}

}  // namespace lockstep::models
