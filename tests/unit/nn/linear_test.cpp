// The plain operations of the fused products: bit for bit LibTorch's.

#include <gtest/gtest.h>
#include <lockstep/nn.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

namespace lockstep {
namespace {

// The result of `forward` on leaves of these sizes, and the gradients of all.
std::vector<at::Tensor> results_of(const std::vector<std::vector<int64_t>>& sizes, at::ScalarType type,
                                   const std::function<at::Tensor(const std::vector<at::Tensor>&)>& forward) {
  torch::manual_seed(1);
  std::vector<at::Tensor> leaves;
  for (const auto& each : sizes) leaves.push_back(torch::randn(each).to(type).requires_grad_());
  const at::Tensor y = forward(leaves);
  std::vector<at::Tensor> values{y.detach()};
  (y * torch::linspace(-1, 1, y.numel()).to(type).view(y.sizes())).sum().backward();
  for (const at::Tensor& leaf : leaves) values.push_back(leaf.grad());
  return values;
}

void expect_equal_results(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], expected[i])) << i;
}

constexpr at::ScalarType kTypesOfProducts[] = {at::kFloat, at::kDouble, at::kBFloat16};

TEST(Linear, IsBitForBitLibTorchsOnTheCpu) {
  for (const at::ScalarType type : kTypesOfProducts) {
    for (const std::vector<int64_t>& input : {std::vector<int64_t>{5, 8}, {2, 3, 8}, {8}, {0, 8}}) {
      SCOPED_TRACE(testing::Message() << type << ' ' << at::IntArrayRef(input));
      const std::vector<std::vector<int64_t>> sizes = {input, {16, 8}, {16}};
      expect_equal_results(
          results_of(sizes, type, [](const auto& t) { return nn::linear(t[0], t[1], t[2]); }),
          results_of(sizes, type, [](const auto& t) { return torch::linear(t[0], t[1], t[2]); }));
    }
  }
}

TEST(GeluMlp, IsBitForBitLibTorchsOnTheCpu) {
  for (const at::ScalarType type : kTypesOfProducts) {
    for (const std::vector<int64_t>& input : {std::vector<int64_t>{5, 8}, {2, 3, 8}, {0, 8}}) {
      SCOPED_TRACE(testing::Message() << type << ' ' << at::IntArrayRef(input));
      const std::vector<std::vector<int64_t>> sizes = {input, {16, 8}, {16}, {8, 16}, {8}};
      expect_equal_results(
          results_of(sizes, type, [](const auto& t) { return nn::gelu_mlp(t[0], t[1], t[2], t[3], t[4]); }),
          results_of(sizes, type, [](const auto& t) {
            return torch::linear(torch::gelu(torch::linear(t[0], t[1], t[2]), "tanh"), t[3], t[4]);
          }));
    }
  }
}

}  // namespace
}  // namespace lockstep
