#include <lockstep/image_dataset.h>
#include <lockstep/loader.h>

#include <stdexcept>

#include "support/byte_images.h"
#include "support/config_error.h"

namespace lockstep {
namespace {

using test::ByteImages;
using test::error_of;
using test::kCifarTransform;
using testing::HasSubstr;

// The transform by ATen, one step after the other, of a uint8 [C, H, W].
at::Tensor transformed(const ImageTransform& transform, at::Tensor image, uint64_t seed) {
  const Augmentation drawn =
      draw_augmentation(transform, {static_cast<int>(image.size(1)), static_cast<int>(image.size(2))}, seed);
  if (transform.random_crop > 0) {
    const int64_t padding = transform.padding;
    image = at::constant_pad_nd(image, {padding, padding, padding, padding});
    image = image.slice(1, drawn.top, drawn.top + transform.random_crop)
                .slice(2, drawn.left, drawn.left + transform.random_crop);
  }
  if (drawn.flip) image = image.flip(2);
  image = image.to(at::kFloat).div(255);
  if (!transform.mean.empty()) {
    const at::Tensor mean = at::tensor(transform.mean).view({-1, 1, 1});
    image = image.sub(mean).div(at::tensor(transform.stddev).view({-1, 1, 1}));
  }
  return image;
}

TEST(ImageDataset, EqualsATenBitForBitInEveryTypeAndLayout) {
  const auto source = std::make_shared<ByteImages>(9, ImageSize{32, 32}, 3);
  const std::vector<int64_t> indices = {3, 0, 8, 3, 5};
  const SampleSeeds seeds(7, 2);
  for (const auto& [type, scalar] : {std::pair(ImageTransform::Type::kFloat32, at::kFloat),
                                     std::pair(ImageTransform::Type::kFloat16, at::kHalf),
                                     std::pair(ImageTransform::Type::kBFloat16, at::kBFloat16)}) {
    for (const auto layout :
         {ImageTransform::Layout::kChannelsFirst, ImageTransform::Layout::kChannelsLast}) {
      ImageTransform transform = kCifarTransform;
      transform.type = type;
      transform.layout = layout;
      const Batch batch = ImageDataset(source, transform).get_batch(indices, seeds);
      ASSERT_EQ(batch.tensors.size(), 2U);
      EXPECT_EQ(batch.data().sizes(), (std::vector<int64_t>{5, 3, 32, 32}));
      EXPECT_EQ(batch.data().scalar_type(), scalar);
      EXPECT_TRUE(batch.data().is_contiguous(layout == ImageTransform::Layout::kChannelsLast
                                                 ? at::MemoryFormat::ChannelsLast
                                                 : at::MemoryFormat::Contiguous));
      for (size_t i = 0; i < indices.size(); ++i) {
        const at::Tensor expected = transformed(transform, source->tensor(indices[i]), seeds.of(indices[i]));
        EXPECT_TRUE(at::equal(batch.data()[static_cast<int64_t>(i)], expected.to(scalar)));
      }
      EXPECT_EQ(batch.target().scalar_type(), at::kLong);
      EXPECT_TRUE(at::equal(batch.target(), at::tensor({3, 0, 8, 3, 5}, at::kLong).remainder(4)));
    }
  }
}

// All 2^32 would take a minute: each exponent with the digits around a tie.
TEST(ImageDataset, RoundsTo16BitsLikeATen) {
  const auto source = std::make_shared<ByteImages>(1, ImageSize{16, 16}, 1, /*counting=*/true);
  for (const float stddev : {1.0F, 0.3F, 255.0F, 1e-3F, 65504.0F, 1e6F, 1e-4F, 1e-38F, 1e30F}) {
    for (const auto& [type, scalar] : {std::pair(ImageTransform::Type::kFloat16, at::kHalf),
                                       std::pair(ImageTransform::Type::kBFloat16, at::kBFloat16)}) {
      const ImageTransform transform{.mean = {0.1307F}, .stddev = {stddev}, .type = type};
      const at::Tensor image = ImageDataset(source, transform).get(0, 0)[0];
      const at::Tensor expected = transformed(transform, source->tensor(0), 0).to(scalar);
      EXPECT_TRUE(at::equal(image.view(at::kShort), expected.view(at::kShort))) << stddev << " " << scalar;
    }
  }
}

TEST(ImageDataset, KeepsBytes) {
  const auto source = std::make_shared<ByteImages>(2, ImageSize{5, 7}, 3);
  const ImageDataset dataset(source, {.type = ImageTransform::Type::kUInt8});
  const Example example = dataset.get(1, 0);
  EXPECT_TRUE(at::equal(example[0], source->tensor(1)));
  EXPECT_EQ(example[1].item<int64_t>(), 1);
  EXPECT_THAT(dataset.image_shape(), testing::ElementsAre(3, 5, 7));
}

// What a sample looks like depends on neither threads nor ranks.
TEST(ImageDataset, GivesTheSamePicturesForAnyNumberOfThreadsAndRanks) {
  const auto source = std::make_shared<ByteImages>(40, ImageSize{32, 32}, 3);
  const auto dataset = std::make_shared<const ImageDataset>(source, kCifarTransform);
  const auto sums_of = [&](int num_workers, int world_size) {
    std::map<std::string, int> pictures;  // the bytes of every sample of the epoch
    for (int rank = 0; rank < world_size; ++rank) {
      Loader loader =
          Loader(dataset, {.batch_size = 5, .shuffle = true, .seed = 3, .num_workers = num_workers})
              .shard(rank, world_size, ShardKind::kTrain);
      for (Batch& batch : loader.epoch(6)) {
        for (int64_t i = 0; i < batch.size(); ++i) {
          const at::Tensor image = batch.data()[i].contiguous();
          ++pictures[std::string(static_cast<const char*>(image.const_data_ptr()), image.nbytes())];
        }
      }
    }
    return pictures;
  };
  const auto one = sums_of(0, 1);
  EXPECT_EQ(one.size(), 40U);
  EXPECT_TRUE(one == sums_of(3, 1));
  EXPECT_TRUE(one == sums_of(2, 4));
}

TEST(ImageDataset, LooksDifferentInTheNextEpoch) {
  const auto source = std::make_shared<ByteImages>(4, ImageSize{32, 32}, 3);
  const ImageDataset dataset(source, kCifarTransform);
  const std::vector<int64_t> indices = {0, 1, 2, 3};
  const at::Tensor first = dataset.get_batch(indices, SampleSeeds(1, 0)).data();
  EXPECT_TRUE(at::equal(first, dataset.get_batch(indices, SampleSeeds(1, 0)).data()));
  EXPECT_FALSE(at::equal(first, dataset.get_batch(indices, SampleSeeds(1, 1)).data()));
}

TEST(ImageDataset, NamesTheSampleThatCannotBeUsed) {
  EXPECT_THAT(error_of([] { ImageDataset(nullptr, {}); }), HasSubstr("needs a source"));
  EXPECT_THAT(error_of([] {
                ImageDataset(std::make_shared<ByteImages>(0, ImageSize{2, 2}, 1), {});
              }),
              HasSubstr("has no images"));
  auto source = std::make_shared<ByteImages>(4, ImageSize{32, 32}, 3);
  source->set_size(2, {31, 32});
  source->fail_at(3);
  const ImageDataset dataset(source, {});
  const auto error_at = [&](int64_t index) {
    return error_of([&] { dataset.get_batch(std::vector<int64_t>{0, index}, SampleSeeds(0, 0)); });
  };
  EXPECT_THAT(error_at(2), HasSubstr("failed at sample 2"));
  EXPECT_THAT(error_at(2), HasSubstr("image 2 is 31x32 after its transform, image 0 is 32x32"));
  EXPECT_THAT(error_at(3), HasSubstr("failed at sample 3: broken image"));
  EXPECT_THAT(error_at(4), HasSubstr("no such sample: index=4, samples=4"));
  EXPECT_THAT(error_at(-1), HasSubstr("index=-1"));
}

}  // namespace
}  // namespace lockstep
