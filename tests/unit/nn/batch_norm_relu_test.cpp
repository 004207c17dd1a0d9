// The plain operations of the fused layers: bit for bit the modules that they replace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/nn.h>
#include <torch/torch.h>

#include <sstream>

#include "support/config_error.h"

namespace lockstep {
namespace {

// BatchNorm2d, ReLU and Dropout one after another, on the same weights.
struct PlainNorm {
  explicit PlainNorm(int64_t features, double p) : norm(features), dropout(p) {}
  at::Tensor forward(const at::Tensor& x) { return dropout(torch::relu(norm(x))); }
  torch::nn::BatchNorm2d norm;
  torch::nn::Dropout dropout;
};

std::vector<at::Tensor> values_after(const std::function<at::Tensor()>& forward, at::Tensor& x,
                                     at::Tensor& shortcut, torch::nn::Module& module) {
  torch::manual_seed(7);
  const at::Tensor y = forward();
  (y * torch::linspace(-1, 1, y.numel()).view(y.sizes())).sum().backward();
  std::vector<at::Tensor> values{y.detach(), x.grad().clone()};
  if (shortcut.grad().defined()) values.push_back(shortcut.grad().clone());
  x.mutable_grad().reset();
  shortcut.mutable_grad().reset();
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.grad());
  for (const at::Tensor& buffer : module.buffers()) values.push_back(buffer);
  return values;
}

TEST(BatchNormRelu, IsBitForBitThePlainModulesOnTheCpu) {
  for (const bool channels_last : {false, true}) {
    for (const bool with_shortcut : {false, true}) {
      for (const bool training : {true, false}) {
        SCOPED_TRACE(testing::Message() << channels_last << with_shortcut << training);
        torch::manual_seed(1);
        const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
        at::Tensor x = torch::randn({4, 6, 5, 3}).contiguous(format).requires_grad_();
        at::Tensor shortcut = torch::randn({4, 6, 5, 3}).contiguous(format).requires_grad_();
        PlainNorm plain(6, 0.3);
        nn::BatchNormRelu fused(nn::BatchNormReluOptions(6).dropout(0.3));
        plain.norm->train(training);
        plain.dropout->train(training);
        fused->train(training);
        const auto expected =
            values_after([&] { return with_shortcut ? plain.forward(x) + shortcut : plain.forward(x); }, x,
                         shortcut, *plain.norm);
        const auto values =
            values_after([&] { return with_shortcut ? fused->forward(x, shortcut) : fused->forward(x); }, x,
                         shortcut, *fused);
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], expected[i])) << i;
      }
    }
  }
}

TEST(BatchNormRelu, AddsTheBiasOfTheShortcut) {
  torch::manual_seed(1);
  nn::BatchNormRelu norm(nn::BatchNormReluOptions(3));
  const at::Tensor x = torch::randn({2, 3, 4, 4}), shortcut = torch::randn({2, 3, 4, 4});
  const at::Tensor bias = torch::tensor({1.F, 10.F, 100.F}).requires_grad_();
  const at::Tensor y = norm->forward(x, shortcut, bias);
  EXPECT_TRUE(torch::allclose(y, norm->forward(x) + shortcut + bias.view({1, 3, 1, 1})));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(bias.grad(), torch::full({3}, 32.F)));
}

TEST(BatchNormRelu, HasTheNamesOfBatchNorm) {
  const torch::nn::BatchNorm2d plain(5);
  const nn::BatchNormRelu fused(nn::BatchNormReluOptions(5));
  EXPECT_EQ(fused->named_parameters().keys(), plain->named_parameters().keys());
  EXPECT_EQ(fused->named_buffers().keys(), plain->named_buffers().keys());
}

TEST(BatchNormRelu, AveragesCumulativelyWithoutMomentum) {
  torch::manual_seed(1);
  nn::BatchNormReluOptions options(2);
  options.momentum(std::nullopt);
  nn::BatchNormRelu fused(options);
  torch::nn::BatchNorm2d plain(torch::nn::BatchNorm2dOptions(2).momentum(std::nullopt));
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = torch::randn({2, 2, 3, 3}) + i;
    fused(x);
    plain(x);
  }
  EXPECT_TRUE(torch::equal(fused->running_mean, plain->running_mean));
  EXPECT_EQ(fused->num_batches_tracked.item<int64_t>(), 3);
}

TEST(BatchNormRelu, WorksInASequentialAndInAClone) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 1)),
                            nn::BatchNormRelu(nn::BatchNormReluOptions(4).dropout(0.5)));
  EXPECT_EQ(net->forward(torch::randn({2, 3, 4, 4})).sizes(), at::IntArrayRef({2, 4, 4, 4}));
  const auto copy = std::dynamic_pointer_cast<nn::BatchNormReluImpl>(net->ptr(1)->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->options.dropout(), 0.5);
  std::ostringstream text;
  text << *copy;
  EXPECT_THAT(text.str(), testing::HasSubstr("lockstep::nn::BatchNormRelu(4, eps=1e-05, momentum=0.1"));
}

TEST(BatchNormRelu, RefusesWhatIsNotPossible) {
  EXPECT_THAT(test::error_of([] { nn::BatchNormRelu(nn::BatchNormReluOptions(4).dropout(1.5)); }),
              testing::HasSubstr("dropout must be a probability, 0 to 1: 1.5"));
  nn::BatchNormRelu norm(nn::BatchNormReluOptions(4));
  EXPECT_THAT(test::error_of([&] {
                norm(torch::randn({2, 3, 4, 4}));
              }),
              testing::HasSubstr("the input must be [batch, 4, height, width]: [2, 3, 4, 4]"));
}

TEST(Pools, ArePlainOnTheCpu) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({2, 3, 9, 8});
  EXPECT_TRUE(torch::equal(nn::max_pool_2x2(x), torch::max_pool2d(x, 2)));
  EXPECT_TRUE(torch::equal(nn::avg_pool(x, 7), torch::avg_pool2d(x, 7)));
}

}  // namespace
}  // namespace lockstep
