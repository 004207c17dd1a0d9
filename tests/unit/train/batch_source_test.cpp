#include "train/batch_source.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::train {
namespace {

TEST(ToDevice, LeavesAloneWhatIsThereAlready) {
  const Batch batch{{torch::rand({2, 3, 4, 4}), torch::tensor({1, 2})}, {}};
  const Batch moved = to_device(batch, c10::kCPU, at::kFloat);
  EXPECT_EQ(moved.data().const_data_ptr(), batch.data().const_data_ptr());
  EXPECT_EQ(moved.target().const_data_ptr(), batch.target().const_data_ptr());
}

TEST(ToDevice, ConvertsFloatsAloneAndKeepsTheMemoryFormat) {
  const at::Tensor images = torch::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  const Batch moved = to_device({{images, torch::tensor({1, 2})}, {}}, c10::kCPU, at::kBFloat16);
  EXPECT_TRUE(at::equal(moved.data(), images.to(at::kBFloat16)));
  EXPECT_TRUE(moved.data().is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(moved.target().scalar_type(), at::kLong);
}

}  // namespace
}  // namespace lockstep::train
