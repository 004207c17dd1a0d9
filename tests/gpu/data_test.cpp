// Batches that come to a GPU, by a copy ahead or from data that lie there, against the CPU's.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/images.h>
#include <torch/torch.h>

#include <thread>

#include "comm/plugin.h"
#include "support/byte_images.h"
#include "support/formula.h"
#include "support/gpu.h"
#include "train/batch_source.h"

namespace lockstep {
namespace {

using test::ByteImages;
using test::kCifarTransform;
using test::same_bits;
using Type = ImageTransform::Type;
using Layout = ImageTransform::Layout;

class GpuDataTest : public test::GpuTest {};

TEST_F(GpuDataTest, PicturesOnTheGpuAreTheCpusBitForBit) {
  const auto source = std::make_shared<ByteImages>(50, ImageSize{32, 32}, 3);
  for (const Type type : {Type::kFloat32, Type::kFloat16, Type::kBFloat16, Type::kUInt8}) {
    for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
      ImageTransform transform = kCifarTransform;
      transform.type = type;
      transform.layout = layout;
      if (type == Type::kUInt8) transform.mean = transform.stddev = {};
      const LoaderOptions options{.batch_size = 16, .shuffle = true, .seed = 5};
      Loader ours(DeviceImageDataset(*source, transform, device()), options);
      Loader theirs(ImageDataset(source, transform), options);
      for (const int64_t epoch : {0, 3}) {
        Loader::Epoch expected = theirs.epoch(epoch);
        for (Batch& batch : ours.epoch(epoch)) {
          const Batch* other = expected.next();
          ASSERT_NE(other, nullptr);
          EXPECT_EQ(batch.data().device(), device());
          EXPECT_EQ(batch.data().strides(), other->data().strides());
          EXPECT_TRUE(same_bits(batch.data(), other->data()));
          EXPECT_TRUE(same_bits(batch.target(), other->target()));
        }
        EXPECT_EQ(expected.next(), nullptr);
      }
    }
  }
}

// The computing stream is kept busy, so that copies run ahead of it; every batch is still
// the one that its step sees, though the host lets go of it at once.
TEST_F(GpuDataTest, CopiesAheadAreTheCpusBatches) {
  const auto source = std::make_shared<ByteImages>(600, ImageSize{32, 32}, 3);
  LoaderOptions options{.batch_size = 24, .shuffle = true, .seed = 9, .num_workers = 3};
  options.pin_memory = true;
  Loader ours(ImageDataset(source, kCifarTransform), options);
  options.pin_memory = false;
  options.num_workers = 0;
  Loader theirs(ImageDataset(source, kCifarTransform), options);
  train::DeviceCopy copy(device(), at::kFloat);

  const at::Tensor busy = test::formula({1024, 1024}, 1).to(device());
  std::vector<at::Tensor> seen;
  for (Batch& batch : ours.epoch(1)) {
    if (device().is_cuda()) {
      EXPECT_TRUE(batch.data().is_pinned());
    }
    const Batch moved = copy(batch);
    EXPECT_EQ(moved.data().device(), device());
    at::Tensor work = busy;
    for (int i = 0; i < 4; ++i) work = torch::mm(work, busy);
    seen.push_back(moved.data() + work.flatten()[0] * 0);  // read after the work
    seen.push_back(moved.target() * 1);
  }
  size_t next = 0;
  for (Batch& batch : theirs.epoch(1)) {
    ASSERT_LT(next, seen.size());
    EXPECT_TRUE(same_bits(seen[next++], batch.data() + 0.0)) << "batch " << next / 2;
    EXPECT_TRUE(same_bits(seen[next++], batch.target())) << "batch " << next / 2;
  }
  EXPECT_EQ(next, seen.size());
}

// Makes batches on the device, slowly: they are not there yet when a loader gives them away.
class SlowOnDevice : public Dataset {
 public:
  explicit SlowOnDevice(c10::Device device) : busy_(test::formula({2048, 2048}, 1).to(device)) {}

  int64_t size() const override { return 64; }
  Example get(int64_t index, uint64_t) const override { return {value_of(index)}; }
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds&) const override {
    return {{value_of(indices.front()).expand({static_cast<int64_t>(indices.size()), 1}).clone()}, {}};
  }

 private:
  at::Tensor value_of(int64_t index) const {
    at::Tensor work = busy_;
    for (int i = 0; i < 50; ++i) work = torch::mm(work, busy_).mul_(1e-3);
    return work.flatten().narrow(0, 0, 1) * 0 + static_cast<double>(index);
  }

  const at::Tensor busy_;
};

// As a training with cuda_graph has it: the trainer's stream is another one than the workers'.
TEST_F(GpuDataTest, BatchesThatWorkersMakeOnTheGpuAreThereForAnotherStream) {
  Loader loader(std::make_shared<SlowOnDevice>(device()), {.batch_size = 4, .num_workers = 2});
  c10::impl::VirtualGuardImpl(device().type()).getStream(device()).synchronize();
  std::thread trainer([&] {
    comm::use_own_cuda_stream(device().index());
    int64_t first = 0;
    for (Batch& batch : loader.epoch(0)) {
      EXPECT_TRUE(at::all(batch.data().cpu() == static_cast<double>(first)).item<bool>()) << first;
      first += 4;
    }
    EXPECT_EQ(first, 64);
  });
  trainer.join();
}

TEST_F(GpuDataTest, TheCopyAheadConvertsAndLeavesWhatIsThere) {
  train::DeviceCopy copy(device(), at::kDouble);
  Batch batch;
  batch.tensors = {torch::arange(6, at::kFloat), torch::arange(6), torch::arange(6, at::kLong).to(device())};
  const Batch moved = copy(batch);
  for (const at::Tensor& tensor : moved.tensors) EXPECT_EQ(tensor.device(), device());
  EXPECT_TRUE(same_bits(moved.tensors[0], torch::arange(6, at::kDouble)));
  EXPECT_TRUE(same_bits(moved.tensors[1], torch::arange(6)));
  EXPECT_EQ(moved.tensors[2].data_ptr(), batch.tensors[2].data_ptr());
}

}  // namespace
}  // namespace lockstep
