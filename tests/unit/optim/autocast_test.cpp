#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

TEST(AutocastTest, MatrixProductsAreIn16BitsWhileItExists) {
  const torch::Tensor x = torch::ones({4, 4});
  {
    const Autocast autocast("bf16", at::kCPU);
    EXPECT_EQ(torch::mm(x, x).scalar_type(), at::kBFloat16);
    {
      const Autocast inner("fp16", at::kCPU);
      EXPECT_EQ(torch::mm(x, x).scalar_type(), at::kHalf);
    }
    EXPECT_EQ(torch::mm(x, x).scalar_type(), at::kBFloat16) << "the outer one applies again";
  }
  EXPECT_EQ(torch::mm(x, x).scalar_type(), at::kFloat);
  const Autocast none("fp32", at::kCPU);
  EXPECT_EQ(torch::mm(x, x).scalar_type(), at::kFloat);
}

TEST(AutocastTest, RefusesOtherTexts) {
  EXPECT_THAT([] { Autocast("bfloat16", at::kCPU); },
              testing::ThrowsMessage<ConfigError>(testing::StrEq(
                  "[optim] the precision of Autocast must be fp32, bf16 or fp16: 'bfloat16'")));
}

}  // namespace
}  // namespace lockstep
