// What decides whether and on which tensors the fused kernels run.

#include "nn/kernels.h"

#include <gtest/gtest.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include "nn/attention.h"

namespace lockstep::nn {
namespace {

TEST(FusedKernels, TakeAutocastsTypeExceptOfFloat64AndIntegers) {
  EXPECT_EQ(type_of_products(torch::zeros({1})), at::kFloat);
  const Autocast autocast(at::kBFloat16, at::kCUDA);
  EXPECT_EQ(type_of_products(torch::zeros({1})), at::kBFloat16);
  EXPECT_EQ(type_of_products(torch::zeros({1}, at::kHalf)), at::kBFloat16);
  EXPECT_EQ(type_of_products(torch::zeros({1}, at::kDouble)), at::kDouble);
  EXPECT_EQ(type_of_products(torch::zeros({1}, at::kLong)), at::kLong);
}

TEST(FusedKernels, RunOnTheirComputeCapabilities) {
  EXPECT_FALSE(can_run_on(0)) << "unknown";
  EXPECT_FALSE(can_run_on(75));
  EXPECT_TRUE(can_run_on(80));
  EXPECT_TRUE(can_run_on(89));
  EXPECT_TRUE(can_run_on(120));
  EXPECT_FALSE(prefers_cudnn(0, 92600));
  EXPECT_FALSE(prefers_cudnn(89, 92600));
  EXPECT_TRUE(prefers_cudnn(90, 91501));
  EXPECT_TRUE(prefers_cudnn(100, 92600));
  EXPECT_FALSE(prefers_cudnn(90, 91500));
  EXPECT_FALSE(prefers_cudnn(90, 0));
}

TEST(FusedKernels, DoNotRunOnTheCpu) {
  EXPECT_EQ(kernels_on(at::kCPU), nullptr);
  EXPECT_EQ(compute_capability(at::kCPU), 0);
  EXPECT_FALSE(is_fused(torch::zeros({2, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast)));
}

TEST(FusedKernels, GetVectorsOf16Bytes) {
  const at::Tensor flat = torch::arange(33, at::kHalf);
  const at::Tensor plain = flat.slice(0, 0, 32).view({4, 8});
  EXPECT_TRUE(is_vectors(plain));
  EXPECT_TRUE(as_vectors(plain).is_same(plain)) << "a copy for nothing";
  const at::Tensor shifted = flat.slice(0, 1).view({4, 8});
  ASSERT_TRUE(shifted.is_contiguous());
  for (const at::Tensor& tensor :
       {shifted, plain.t(), plain.slice(1, 0, 4), torch::ones({}).expand({4, 8})}) {
    EXPECT_FALSE(is_vectors(tensor));
    const at::Tensor copy = as_vectors(tensor);
    EXPECT_TRUE(is_vectors(copy));
    EXPECT_TRUE(torch::equal(copy, tensor));
  }
}

// A third has no exact value in 16 bits. Rounded, it would change all gradients in the same direction.
TEST(FusedKernels, ScaleIn16BitsWithOneRounding) {
  torch::manual_seed(1);
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor values = torch::randn({70, 50}).to(type);
    const at::Tensor factor = torch::tensor(1.F / 3);
    const at::Tensor once = (values.to(at::kFloat) * factor.item<float>()).to(type);
    EXPECT_TRUE(torch::equal(scaled(values, factor, type), once));
    EXPECT_TRUE(torch::equal(scaled(values, factor, at::kFloat), values.to(at::kFloat) * factor));
    EXPECT_FALSE(torch::equal((values.to(at::kFloat) * factor.to(type).to(at::kFloat)).to(type), once))
        << "the factor is one that 16 bits have";
  }
}

TEST(GuardOfAttention, LeavesTheOrderOnTheCpu) {
  const auto order = at::globalContext().sDPPriorityOrder();
  const CudnnFirst one(at::kCPU);
  const CudnnFirst another(at::kCPU);  // waits for nothing
  EXPECT_EQ(at::globalContext().sDPPriorityOrder(), order);
}

}  // namespace
}  // namespace lockstep::nn
