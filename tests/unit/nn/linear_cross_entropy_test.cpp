#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/nn.h>
#include <torch/torch.h>

#include "support/config_error.h"

namespace lockstep {
namespace {

TEST(LinearCrossEntropy, IsPlainOnTheCpu) {
  torch::manual_seed(1);
  const at::Tensor hidden = torch::randn({6, 4}), weight = torch::randn({9, 4});
  const at::Tensor targets = torch::tensor({0, 8, 3, -100, 2, 1});
  EXPECT_TRUE(torch::equal(nn::linear_cross_entropy(hidden, weight, targets),
                           torch::nn::functional::cross_entropy(torch::linear(hidden, weight), targets)));
}

TEST(LinearCrossEntropy, RefusesOtherShapes) {
  const at::Tensor hidden = torch::randn({6, 4}), targets = torch::zeros({6}, at::kLong);
  EXPECT_THAT(test::error_of([&] {
                nn::linear_cross_entropy(hidden, torch::randn({9, 5}), targets);
              }),
              testing::HasSubstr("must be [rows, size], [classes, size] and [rows]: [6, 4], [9, 5] and [6]"));
  EXPECT_THAT(test::error_of([&] {
                nn::linear_cross_entropy(hidden, torch::randn({9, 4}), targets, {.chunk_rows = 0});
              }),
              testing::HasSubstr("chunk_rows must be at least 1: 0"));
}

}  // namespace
}  // namespace lockstep
