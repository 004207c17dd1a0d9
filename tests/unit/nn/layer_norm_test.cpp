// The plain operations of LayerNorm: bit for bit the module that it replaces.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/nn.h>
#include <torch/torch.h>

#include <sstream>

namespace lockstep {
namespace {

TEST(FusedLayerNorm, IsBitForBitThePlainModuleOnTheCpu) {
  torch::manual_seed(1);
  const auto options = torch::nn::LayerNormOptions({6}).eps(1e-6);
  torch::nn::LayerNorm plain(options);
  nn::LayerNorm fused(options);
  EXPECT_EQ(fused->named_parameters().keys(), plain->named_parameters().keys());
  for (const auto& parameters : {plain->parameters(), fused->parameters()}) {
    const torch::NoGradGuard no_grad;
    parameters[0].copy_(torch::linspace(-1, 1, 6));
    parameters[1].copy_(torch::linspace(2, 3, 6));
  }
  const at::Tensor x = torch::randn({3, 5, 6}), branch = torch::randn({3, 5, 6});
  EXPECT_TRUE(torch::equal(fused(x), plain(x)));
  const auto [sum, normalized] = fused->add(x, branch);
  EXPECT_TRUE(torch::equal(sum, x + branch));
  EXPECT_TRUE(torch::equal(normalized, plain(x + branch)));
  (normalized * branch).sum().backward();
  (plain(x + branch) * branch).sum().backward();
  EXPECT_TRUE(torch::equal(fused->weight.grad(), plain->weight.grad()));
  EXPECT_TRUE(torch::equal(fused->bias.grad(), plain->bias.grad()));
}

TEST(FusedLayerNorm, WorksWithoutParametersAndInAClone) {
  nn::LayerNorm norm(torch::nn::LayerNormOptions({4, 2}).elementwise_affine(false));
  EXPECT_TRUE(norm->parameters().empty());
  const at::Tensor x = torch::randn({3, 4, 2});
  EXPECT_TRUE(torch::equal(norm(x), torch::layer_norm(x, {4, 2})));
  const auto copy = std::dynamic_pointer_cast<nn::LayerNormImpl>(norm->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_FALSE(copy->weight.defined());
  std::ostringstream text;
  text << *norm;
  EXPECT_EQ(text.str(), "lockstep::nn::LayerNorm([4, 2], eps=1e-05, elementwise_affine=false)");
}

TEST(Attention, IsPlainOnTheCpu) {
  torch::manual_seed(1);
  const at::Tensor q = torch::randn({2, 3, 5, 8}), k = torch::randn({2, 3, 5, 8}),
                   v = torch::randn({2, 3, 5, 8});
  EXPECT_TRUE(torch::equal(nn::attention(q, k, v, {.is_causal = true}),
                           at::scaled_dot_product_attention(q, k, v, std::nullopt, 0, true)));
}

}  // namespace
}  // namespace lockstep
