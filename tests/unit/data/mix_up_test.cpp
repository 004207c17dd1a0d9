#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/images.h>
#include <torch/torch.h>

#include <memory>
#include <set>
#include <vector>

#include "support/byte_images.h"
#include "support/config_error.h"

namespace lockstep {
namespace {

using test::ByteImages;
using test::error_of;
using testing::HasSubstr;

std::shared_ptr<const Dataset> images() {
  const auto source = std::make_shared<ByteImages>(6, ImageSize{4, 5}, 3);
  return std::make_shared<ImageDataset>(source, ImageTransform{});
}

TEST(MixUp, MixesEachImageWithTheOneBefore) {
  const Batch batch{{at::tensor({1.0F, 2.0F, 4.0F}).view({3, 1, 1, 1}), at::tensor({0, 2, 1}, at::kLong)},
                    {}};
  const Batch mixed = mix_up(batch, 0.75, 3);
  EXPECT_TRUE(mixed.data().flatten().equal(at::tensor({1.75F, 1.75F, 3.5F})));
  EXPECT_TRUE(mixed.target().equal(
      at::tensor({0.75F, 0.25F, 0.0F, 0.25F, 0.0F, 0.75F, 0.0F, 0.75F, 0.25F}).view({3, 3})));
  EXPECT_TRUE(batch.data().flatten().equal(at::tensor({1.0F, 2.0F, 4.0F}))) << "the batch itself stays";
  const Batch again = mix_up(mixed, 1, 3);
  EXPECT_TRUE(again.target().equal(mixed.target())) << "labels that are probabilities";
}

TEST(MixUp, ABatchDependsOnItsSeedsOnly) {
  const MixUpDataset dataset(images(), /*alpha=*/0.4, /*num_classes=*/10);
  EXPECT_EQ(dataset.size(), 6);
  const std::vector<int64_t> indices = {4, 1, 3};
  std::set<float> shares;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    const SampleSeeds seeds(7, epoch);
    const Batch batch = dataset.get_batch(indices, seeds);
    EXPECT_TRUE(batch.data().equal(dataset.get_batch(indices, seeds).data()));
    const double share = draw_mix_up(0.4, seeds.of(4));
    EXPECT_TRUE(batch.data().equal(mix_up(images()->get_batch(indices, seeds), share, 10).data()));
    EXPECT_EQ(batch.target().sizes(), (std::vector<int64_t>{3, 10}));
    shares.insert(static_cast<float>(share));
  }
  EXPECT_EQ(shares.size(), 5u);
  EXPECT_EQ(dataset.get(2, 11)[1].sum().item<float>(), 1);
}

// Of Beta(alpha, alpha): the mean is 1/2, the variance 1 / (8 alpha + 4).
TEST(MixUp, SharesHaveTheirDistribution) {
  for (const double alpha : {0.2, 1.0, 3.0}) {
    constexpr int kDraws = 4000;
    double sum = 0;
    double squares = 0;
    for (uint64_t seed = 0; seed < kDraws; ++seed) {
      const double share = draw_mix_up(alpha, seed);
      sum += share;
      squares += (share - 0.5) * (share - 0.5);
    }
    EXPECT_NEAR(sum / kDraws, 0.5, 0.03) << alpha;
    EXPECT_NEAR(squares / kDraws, 1 / (8 * alpha + 4), 0.01) << alpha;
  }
}

TEST(MixUp, SaysWhatItCannotMix) {
  const Batch bytes{{at::zeros({2, 1, 1, 1}, at::kByte), at::zeros({2}, at::kLong)}, {}};
  EXPECT_THAT(error_of([&] { mix_up(bytes, 0.5, 3); }), HasSubstr("images of a floating type"));
  const Batch labels{{at::zeros({2, 1, 1, 1}), at::tensor({0, 3}, at::kLong)}, {}};
  EXPECT_THAT(error_of([&] { mix_up(labels, 0.5, 3); }), HasSubstr("class indices below num_classes=3"));
  EXPECT_THAT(error_of([&] { mix_up(labels, 1.5, 4); }), HasSubstr("from 0 to 1: 1.5"));
  EXPECT_THAT(error_of([] { MixUpDataset(images(), 0, 10); }),
              HasSubstr("alpha of MixUp must be above 0: 0"));
  EXPECT_THAT(error_of([] { MixUpDataset(images(), 1, 0); }), HasSubstr("num_classes"));
}

TEST(MixUp, DeviceImagesRefuseChangesOfColours) {
  const ByteImages source(2, {8, 8}, 3);
  EXPECT_THAT(error_of([&] { DeviceImageDataset(source, {.color_jitter = {.hue = 0.1}}, at::kCPU); }),
              HasSubstr("color_jitter needs an ImageDataset"));
}

}  // namespace
}  // namespace lockstep
