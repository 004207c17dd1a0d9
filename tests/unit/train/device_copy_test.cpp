#include "train/batch_source.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::train {
namespace {

TEST(DeviceCopy, OnTheCpuLeavesBatchesWhereTheyAreAndConvertsFloats) {
  const Batch inner{{torch::rand({2, 3}), torch::tensor({1, 2})}, {}};
  const Batch batch{{}, {{"a", inner}}};
  DeviceCopy same(c10::kCPU, at::kFloat);
  const Batch left = same(batch);
  EXPECT_EQ(left["a"].data().const_data_ptr(), inner.data().const_data_ptr());
  EXPECT_EQ(left["a"].target().const_data_ptr(), inner.target().const_data_ptr());
  DeviceCopy narrow(c10::kCPU, at::kBFloat16);
  const Batch converted = narrow(batch);
  EXPECT_TRUE(at::equal(converted["a"].data(), inner.data().to(at::kBFloat16)));
  EXPECT_EQ(converted["a"].target().scalar_type(), at::kLong);
}

}  // namespace
}  // namespace lockstep::train
