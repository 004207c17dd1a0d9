#include "recipes/wide_resnet.h"

#include <fmt/format.h>

#include "recipes/model_input.h"

namespace lockstep::models {
namespace {

constexpr auto kWideResNet = "the Wide ResNet";
constexpr int64_t kStemWidth = 16;
constexpr int64_t kLastPool = 7;  // on the 8x8 of a 32x32 image it leaves out a row and a column

torch::nn::Conv2d make_conv(int64_t in_channels, int64_t out_channels) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, 3).padding(1).bias(false));
}

}  // namespace

ConvNormRelu::ConvNormRelu(int64_t in_channels, int64_t out_channels, double dropout)
    : conv_(make_conv(in_channels, out_channels)),
      norm_(nn::BatchNormReluOptions(out_channels).dropout(dropout)) {
  register_module("cbr", torch::nn::Sequential(conv_, norm_));
}

at::Tensor ConvNormRelu::forward(const at::Tensor& x, const at::Tensor& shortcut,
                                 const at::Tensor& shortcut_bias) {
  return norm_->forward(conv_->forward(x), shortcut, shortcut_bias);
}

ResidualBlock::ResidualBlock(int64_t in_channels, int64_t out_channels, double dropout) {
  if (in_channels != out_channels) {
    scale_ = register_module("scale", torch::nn::Conv2d(in_channels, out_channels, 1));
  }
  layer1_ = register_module("layer1", std::make_shared<ConvNormRelu>(in_channels, out_channels, dropout));
  layer2_ = register_module("layer2", std::make_shared<ConvNormRelu>(out_channels, out_channels));
}

at::Tensor ResidualBlock::forward(const at::Tensor& x) {
  const at::Tensor inner = layer1_->forward(x);
  if (scale_.is_empty()) return layer2_->forward(inner, x);
  // The bias would be a pass of its own.
  if (!is_training() || !nn::is_fused(inner)) return layer2_->forward(inner, scale_->forward(x));
  return layer2_->forward(inner, torch::conv2d(x, scale_->weight), scale_->bias);
}

WideResNet::WideResNet(const WideResNetOptions& options)
    : channels_(options.channels),
      input_block_(
          register_module("input_block", std::make_shared<ConvNormRelu>(options.channels, kStemWidth))) {
  int64_t width = kStemWidth;
  for (const int64_t factor : {1, 1, 2, 2, 4, 4}) {
    const int64_t out_width = kStemWidth * options.widen_factor * factor;
    blocks_.push_back(register_module(fmt::format("block{}", blocks_.size() + 1),
                                      std::make_shared<ResidualBlock>(width, out_width, options.dropout)));
    width = out_width;
  }
  fc_ = register_module("fc", torch::nn::Linear(width, options.classes));
}

at::Tensor WideResNet::forward(const at::Tensor& images) {
  check_images({kWideResNet, channels_, 4 * kLastPool, 4 * 2 * kLastPool - 1}, images);
  at::Tensor x = input_block_->forward(images);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i == 2 || i == 4) x = nn::max_pool_2x2(x);
    x = blocks_[i]->forward(x);
  }
  return fc_->forward(torch::flatten(nn::avg_pool(x, kLastPool), 1));
}

Model wide_resnet(const WideResNetOptions& options) {
  require_positive(kWideResNet, "classes", options.classes);
  require_positive(kWideResNet, "channels", options.channels);
  require_positive(kWideResNet, "widen_factor", options.widen_factor);
  require_probability(kWideResNet, "dropout", options.dropout);
  return std::make_shared<WideResNet>(options);
}

}  // namespace lockstep::models
