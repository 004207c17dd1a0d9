#include <lockstep/device_image_dataset.h>
#include <lockstep/image_dataset.h>
#include <lockstep/loader.h>

#include "support/byte_images.h"
#include "support/config_error.h"

namespace lockstep {
namespace {

using test::ByteImages;
using test::error_of;
using test::kCifarTransform;
using testing::HasSubstr;
using Type = ImageTransform::Type;
using Layout = ImageTransform::Layout;

// Everything here is ATen's operators: what holds for the CPU as device holds for a GPU.
const c10::Device kDevice(c10::kCPU);

void expect_equal_bits(const std::shared_ptr<ByteImages>& source, const ImageTransform& transform) {
  const ImageDataset expected(source, transform);
  const DeviceImageDataset dataset(*source, transform, kDevice);
  ASSERT_EQ(dataset.size(), expected.size());
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < 2 * source->size(); ++i) indices.push_back(i * 7 % source->size());
  const SampleSeeds seeds(11, 3);
  const Batch ours = dataset.get_batch(indices, seeds);
  const Batch theirs = expected.get_batch(indices, seeds);
  ASSERT_EQ(ours.tensors.size(), 2U);
  EXPECT_EQ(ours.data().scalar_type(), theirs.data().scalar_type());
  EXPECT_EQ(ours.data().strides(), theirs.data().strides());
  EXPECT_TRUE(at::equal(ours.data(), theirs.data()));
  EXPECT_TRUE(at::equal(ours.target(), theirs.target()));
}

TEST(DeviceImageDataset, EqualsTheCpuBitForBitInEveryTypeAndLayout) {
  const auto source = std::make_shared<ByteImages>(13, ImageSize{32, 32}, 3);
  for (const Type type : {Type::kFloat32, Type::kFloat16, Type::kBFloat16}) {
    for (const Layout layout : {Layout::kChannelsFirst, Layout::kChannelsLast}) {
      ImageTransform transform = kCifarTransform;
      transform.type = type;
      transform.layout = layout;
      expect_equal_bits(source, transform);
    }
  }
}

TEST(DeviceImageDataset, DoesEachStepAlone) {
  const auto source = std::make_shared<ByteImages>(5, ImageSize{19, 26}, 3);
  expect_equal_bits(source, {});
  expect_equal_bits(source, {.type = Type::kUInt8});
  expect_equal_bits(source, {.flip_probability = 1});
  expect_equal_bits(source, {.random_crop = 9});
  expect_equal_bits(source,
                    {.random_crop = 25, .padding = 3, .layout = Layout::kChannelsLast, .type = Type::kUInt8});
  expect_equal_bits(source, {.center_crop = 30, .random_crop = 12});
  expect_equal_bits(
      source, {.resize = 14, .center_crop = 14, .random_crop = 14, .padding = 2, .flip_probability = 0.5});
  const auto grey = std::make_shared<ByteImages>(3, ImageSize{28, 28}, 1);
  expect_equal_bits(grey, {.mean = {0.1307F}, .stddev = {0.3081F}});
}

// More pictures than are copied at a time.
TEST(DeviceImageDataset, TakesManyPictures) {
  expect_equal_bits(std::make_shared<ByteImages>(2500, ImageSize{4, 4}, 1), {.random_crop = 4, .padding = 1});
}

TEST(DeviceImageDataset, ServesALoader) {
  const auto source = std::make_shared<ByteImages>(20, ImageSize{32, 32}, 3);
  const LoaderOptions options{.batch_size = 6, .shuffle = true, .seed = 5};
  Loader ours(DeviceImageDataset(*source, kCifarTransform, kDevice), options);
  Loader theirs(ImageDataset(source, kCifarTransform), options);
  Loader::Epoch expected = theirs.epoch(2);
  for (Batch& batch : ours.epoch(2)) {
    Batch* other = expected.next();
    ASSERT_NE(other, nullptr);
    EXPECT_TRUE(at::equal(batch.data(), other->data()));
    EXPECT_TRUE(at::equal(batch.target(), other->target()));
  }
  EXPECT_EQ(expected.next(), nullptr);
}

TEST(DeviceImageDataset, GivesOneSample) {
  const auto source = std::make_shared<ByteImages>(4, ImageSize{32, 32}, 3);
  const Example ours = DeviceImageDataset(*source, kCifarTransform, kDevice).get(2, 99);
  const Example theirs = ImageDataset(source, kCifarTransform).get(2, 99);
  EXPECT_TRUE(at::equal(ours[0], theirs[0]));
  EXPECT_TRUE(at::equal(ours[1], theirs[1]));
}

TEST(DeviceImageDataset, RefusesWhatImageDatasetRefuses) {
  const ByteImages source(4, {8, 8}, 3);
  EXPECT_THAT(error_of([&] { DeviceImageDataset(source, {.random_crop = 9}, kDevice); }),
              HasSubstr("random_crop"));
  EXPECT_THAT(error_of([&] { DeviceImageDataset(source, {.flip_probability = 2}, kDevice); }),
              HasSubstr("flip_probability"));
  EXPECT_THAT(error_of([&] {
                DeviceImageDataset(source, {.mean = {1, 2}, .stddev = {1, 2}}, kDevice);
              }),
              HasSubstr("3 channel(s), mean and stddev are for 2"));
  EXPECT_THAT(error_of([&] {
                DeviceImageDataset(ByteImages(0, {8, 8}, 3), {}, kDevice);
              }),
              HasSubstr("no images"));
  const DeviceImageDataset dataset(source, {}, kDevice);
  EXPECT_THAT(error_of([&] {
                dataset.get_batch(std::vector<int64_t>{1, 4}, SampleSeeds(0, 0));
              }),
              HasSubstr("no such sample: index=4, samples=4"));
}

}  // namespace
}  // namespace lockstep
