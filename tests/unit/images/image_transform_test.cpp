#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/image_files.h>

#include <array>
#include <map>

#include "images/image_transform.h"
#include "support/config_error.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

TEST(ImageTransform, NamesTheFieldThatDoesNotHold) {
  EXPECT_THAT(error_of([] { ImageTransform{.resize = -1}.validate(); }), HasSubstr("resize must be from 0"));
  EXPECT_THAT(error_of([] { ImageTransform{.center_crop = 1 << 20}.validate(); }), HasSubstr("center_crop"));
  EXPECT_THAT(error_of([] { ImageTransform{.padding = 4}.validate(); }), HasSubstr("random_crop"));
  EXPECT_THAT(error_of([] { ImageTransform{.flip_probability = 1.5}.validate(); }),
              HasSubstr("flip_probability must be from 0 to 1: 1.5"));
  EXPECT_THAT(error_of([] {
                ImageTransform{.mean = {0.5F, 0.5F}, .stddev = {1}}.validate();
              }),
              HasSubstr("2 and 1"));
  EXPECT_THAT(error_of([] { ImageTransform{.mean = {0.5F}, .stddev = {0}}.validate(); }),
              HasSubstr("stddev above 0"));
  EXPECT_THAT(
      error_of([] {
        ImageTransform{.mean = {0.5F}, .stddev = {1}, .type = ImageTransform::Type::kUInt8}.validate();
      }),
      HasSubstr("uint8 keeps the bytes"));
}

TEST(ImageTransform, TellsTheSizeOfWhatItMakes) {
  EXPECT_EQ(transformed_size({}, {28, 30}), (ImageSize{28, 30}));
  EXPECT_EQ(transformed_size({.resize = 256}, {375, 500}), (ImageSize{256, 341}));
  EXPECT_EQ(transformed_size({.resize = 256}, {500, 375}), (ImageSize{341, 256}));
  EXPECT_EQ(transformed_size({.resize = 256, .center_crop = 224}, {500, 375}), (ImageSize{224, 224}));
  EXPECT_EQ(transformed_size({.random_crop = 32, .padding = 4}, {32, 32}), (ImageSize{32, 32}));
  EXPECT_EQ(transformed_size({.resize = 8}, {1, 1}), (ImageSize{8, 8}));
}

TEST(ImageTransform, RefusesACropThatIsLargerThanThePaddedPicture) {
  const ImageTransform transform{.random_crop = 32, .padding = 4};
  EXPECT_EQ(transformed_size(transform, {24, 24}), (ImageSize{32, 32}));
  const std::string text = error_of([&] { transformed_size(transform, {24, 23}); });
  EXPECT_THAT(text, HasSubstr("random_crop=32, picture 24x23 with padding=4"));
  EXPECT_THAT(error_of([&] { draw_augmentation(transform, {24, 23}, 0); }), HasSubstr("random_crop=32"));
}

TEST(ImageTransform, RefusesAPictureThatItsResizeMakesTooLong) {
  EXPECT_THAT(error_of([] { transformed_size({.resize = 256}, {1, 1000}); }), HasSubstr("1x1000"));
}

TEST(ImageTransform, ColorJitterHasLimits) {
  EXPECT_THAT(error_of([] { ImageTransform{.color_jitter = {.contrast = -0.1}}.validate(); }),
              HasSubstr("color_jitter.contrast must be a number from 0: -0.1"));
  EXPECT_THAT(error_of([] { ImageTransform{.color_jitter = {.hue = 0.6}}.validate(); }),
              HasSubstr("color_jitter.hue must be a number from 0 to 0.5: 0.6"));
  EXPECT_TRUE((ImageTransform{.color_jitter = {.hue = 0.5}}.is_random()));
}

// Its numbers are its own: crop and flip are those without it.
TEST(ImageTransform, ColorJitterIsDrawnFromTheSeed) {
  ImageTransform transform{.random_crop = 4, .padding = 3, .flip_probability = 0.5};
  std::map<std::array<int, 4>, int> orders;
  for (uint64_t seed = 0; seed < 2400; ++seed) {
    transform.color_jitter = {};
    const Augmentation without = draw_augmentation(transform, {6, 9}, seed);
    EXPECT_EQ(without.colors, ColorFactors());
    transform.color_jitter = {.brightness = 0.4, .contrast = 1.5, .saturation = 0, .hue = 0.1};
    const Augmentation drawn = draw_augmentation(transform, {6, 9}, seed);
    EXPECT_EQ(drawn.left, without.left);
    EXPECT_EQ(drawn.flip, without.flip);
    EXPECT_THAT(drawn.colors.brightness, AllOf(testing::Ge(0.6F), testing::Le(1.4F)));
    EXPECT_THAT(drawn.colors.contrast, AllOf(testing::Ge(0), testing::Le(2.5)));
    EXPECT_EQ(drawn.colors.saturation, 1);
    EXPECT_THAT(drawn.colors.hue, AllOf(testing::Ge(-0.1F), testing::Le(0.1F)));
    ++orders[drawn.colors.order];
  }
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 100, 50);
}

// SplitMix64 of seed 0 begins with e220a8397b1dcdaf, 6e789e6aa1b965f4, 06c45d188009454f.
TEST(ImageTransform, DrawsFromTheSeedAsDocumented) {
  const Augmentation drawn =
      draw_augmentation({.random_crop = 32, .padding = 4, .flip_probability = 0.5}, {32, 32}, 0);
  EXPECT_EQ(drawn.top, 7);
  EXPECT_EQ(drawn.left, 3);
  EXPECT_TRUE(drawn.flip);
  const double fraction = static_cast<double>(0x06c45d188009454fU >> 11) * 0x1p-53;
  EXPECT_FALSE(draw_augmentation({.flip_probability = fraction}, {32, 32}, 0).flip);
  EXPECT_TRUE(draw_augmentation({.flip_probability = fraction + 0x1p-50}, {32, 32}, 0).flip);
}

TEST(ImageTransform, AStepThatIsLeftOutMovesNoOtherNumber) {
  const ImageTransform both{.random_crop = 4, .padding = 3, .flip_probability = 0.5};
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Augmentation drawn = draw_augmentation(both, {6, 9}, seed);
    EXPECT_EQ(draw_augmentation({.random_crop = 4, .padding = 3}, {6, 9}, seed).left, drawn.left);
    EXPECT_EQ(draw_augmentation({.flip_probability = 0.5}, {6, 9}, seed).flip, drawn.flip);
  }
}

TEST(ImageTransform, DrawsEveryPlaceEquallyOften) {
  const ImageTransform transform{.random_crop = 32, .padding = 4, .flip_probability = 0.25};
  std::map<int, int> tops;
  std::map<int, int> lefts;
  int flips = 0;
  constexpr int kDraws = 90000;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    const Augmentation drawn = draw_augmentation(transform, {32, 33}, seed);
    ++tops[drawn.top];
    ++lefts[drawn.left];
    flips += drawn.flip ? 1 : 0;
  }
  ASSERT_EQ(tops.size(), 9U);
  ASSERT_EQ(lefts.size(), 10U);
  for (const auto& [top, count] : tops) EXPECT_NEAR(count, kDraws / 9, 500) << top;
  for (const auto& [left, count] : lefts) EXPECT_NEAR(count, kDraws / 10, 500) << left;
  EXPECT_NEAR(flips, kDraws / 4, 700);
}

// The offsets of torchvision.transforms.functional.center_crop.
TEST(ImageTransform, PutsTheCenterWhereTorchvisionDoes) {
  const auto top = [](int side, int crop) {
    return images::center_window({.center_crop = crop}, {side, side}).top;
  };
  EXPECT_EQ(top(10, 10), 0);
  EXPECT_EQ(top(11, 10), 0);  // half a pixel: to the even one
  EXPECT_EQ(top(13, 10), 2);
  EXPECT_EQ(top(15, 10), 2);
  EXPECT_EQ(top(7, 10), -1);
  EXPECT_EQ(top(4, 10), -3);
}

}  // namespace
}  // namespace lockstep
