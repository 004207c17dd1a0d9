#pragma once

#include <lockstep/models.h>
#include <lockstep/nn.h>
#include <torch/torch.h>

#include <vector>

namespace lockstep::models {

// 3x3 convolution, BatchNorm, ReLU, dropout, and the sum with a shortcut. The first two have the names
// "cbr.0" and "cbr.1".
class ConvNormRelu final : public torch::nn::Module {
 public:
  ConvNormRelu(int64_t in_channels, int64_t out_channels, double dropout = 0);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& shortcut = {},
                     const at::Tensor& shortcut_bias = {});

 private:
  torch::nn::Conv2d conv_;
  nn::BatchNormRelu norm_;
};

// Two of those with a dropout between them, added to the input. A 1x1 convolution, "scale",
// widens the input where the widths differ. No ReLU after the sum: it is Sigma2's block,
// not the paper's.
class ResidualBlock final : public torch::nn::Module {
 public:
  ResidualBlock(int64_t in_channels, int64_t out_channels, double dropout);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d scale_{nullptr};  // empty: the widths are equal
  std::shared_ptr<ConvNormRelu> layer1_;
  std::shared_ptr<ConvNormRelu> layer2_;
};

// The class WideResNet of Sigma2's CIFAR-100 page.
class WideResNet final : public torch::nn::Module {
 public:
  explicit WideResNet(const WideResNetOptions& options);
  at::Tensor forward(const at::Tensor& images);

 private:
  int64_t channels_;
  std::shared_ptr<ConvNormRelu> input_block_;
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace lockstep::models
