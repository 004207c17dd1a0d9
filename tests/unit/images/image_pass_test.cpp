#include "images/image_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "base/narrow_float.h"
#include "support/config_error.h"

namespace lockstep::images {
namespace {

using Type = ImageTransform::Type;
using Layout = ImageTransform::Layout;
using test::error_of;
using testing::HasSubstr;

// A picture of random bytes.
struct Picture {
  Picture(int channels, int height, int width, ImageView::Layout layout, unsigned seed = 1)
      : pixels(static_cast<size_t>(channels * height * width)),
        view{pixels.data(), channels, height, width, layout} {
    std::mt19937 random(seed);
    for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(random());
  }

  uint8_t at(int c, int y, int x) const {
    if (y < 0 || x < 0 || y >= view.height || x >= view.width) return 0;
    const int place = view.layout == ImageView::Layout::kPlanar ? (c * view.height + y) * view.width + x
                                                                : (y * view.width + x) * view.channels + c;
    return pixels[static_cast<size_t>(place)];
  }

  std::vector<uint8_t> pixels;
  ImageView view;
};

// The bits of a value in the transform's type.
uint32_t bits_of(const ImageTransform& transform, int channel, uint8_t byte) {
  if (transform.type == Type::kUInt8) return byte;
  float value = static_cast<float>(byte) / 255.0F;
  if (!transform.mean.empty()) {
    const size_t i = transform.mean.size() > 1 ? static_cast<size_t>(channel) : 0;
    value = (value - transform.mean[i]) / transform.stddev[i];
  }
  if (transform.type == Type::kFloat16) return base::narrow_to_half(value);
  if (transform.type == Type::kBFloat16) return base::narrow_to_bfloat16(value);
  return std::bit_cast<uint32_t>(value);
}

std::vector<uint32_t> run(const ImageTransform& transform, const Picture& picture,
                          const Augmentation& augmentation) {
  const ImagePass pass(transform, picture.view.channels);
  const ImageSize size = transformed_size(transform, {picture.view.height, picture.view.width});
  const auto count = static_cast<size_t>(size.height * size.width * picture.view.channels);
  const size_t bytes = bytes_of(transform.type);
  // Whoever writes outside is seen: the sanitizers at once, others by the last check.
  std::vector<uint8_t> out(count * bytes + 16, 0xa5);
  ImagePass::Scratch scratch;
  pass.run(picture.view, augmentation, scratch, out.data() + 8 / bytes * bytes);
  std::vector<uint32_t> elements(count, 0);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(&elements[i], out.data() + 8 / bytes * bytes + i * bytes, bytes);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(out[i], 0xa5);
    EXPECT_EQ(out[out.size() - 1 - i], 0xa5);
  }
  return elements;
}

// The same one pixel after the other.
std::vector<uint32_t> expected(const ImageTransform& transform, const Picture& picture,
                               const Augmentation& augmentation) {
  const ImageSize whole{picture.view.height, picture.view.width};
  const ImageSize size = transformed_size(transform, whole);
  const int channels = picture.view.channels;
  std::vector<uint32_t> elements(static_cast<size_t>(size.height * size.width * channels));
  const ImageWindow center = center_window(transform, whole);
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < size.height; ++y) {
      for (int x = 0; x < size.width; ++x) {
        // In the cropped center.
        int row = y;
        int column = augmentation.flip ? size.width - 1 - x : x;
        if (transform.random_crop > 0) {
          row += augmentation.top - transform.padding;
          column += augmentation.left - transform.padding;
        }
        const bool inside = row >= 0 && column >= 0 && row < center.size.height && column < center.size.width;
        const uint8_t byte = inside ? picture.at(c, row + center.top, column + center.left) : 0;
        const int place = transform.layout == Layout::kChannelsLast ? (y * size.width + x) * channels + c
                                                                    : (c * size.height + y) * size.width + x;
        elements[static_cast<size_t>(place)] = bits_of(transform, c, byte);
      }
    }
  }
  return elements;
}

constexpr Type kTypes[] = {Type::kFloat32, Type::kFloat16, Type::kBFloat16, Type::kUInt8};
constexpr Layout kLayouts[] = {Layout::kChannelsFirst, Layout::kChannelsLast};
constexpr ImageView::Layout kSources[] = {ImageView::Layout::kPlanar, ImageView::Layout::kInterleaved};

// Compares in every type, layout and order of the source.
void expect_equal(ImageTransform transform, int channels, ImageSize size, const Augmentation& augmentation) {
  for (const ImageView::Layout source : kSources) {
    const Picture picture(channels, size.height, size.width, source);
    for (const Layout layout : kLayouts) {
      for (const Type type : kTypes) {
        ImageTransform typed = transform;
        typed.layout = layout;
        typed.type = type;
        if (type == Type::kUInt8) typed.mean = typed.stddev = {};
        ASSERT_EQ(run(typed, picture, augmentation), expected(typed, picture, augmentation))
            << "source " << static_cast<int>(source) << " layout " << static_cast<int>(layout) << " type "
            << static_cast<int>(type) << ", " << channels << " channels " << size.height << "x" << size.width;
      }
    }
  }
}

const ImageTransform kNormalise{.mean = {0.5071F, 0.4865F, 0.4409F}, .stddev = {0.2673F, 0.2564F, 0.2762F}};

ImageTransform cifar() {
  ImageTransform transform = kNormalise;
  transform.random_crop = 32;
  transform.padding = 4;
  transform.flip_probability = 0.5;
  return transform;
}

TEST(ImagePass, ScalesBytesToOne) {
  expect_equal({}, 1, {28, 28}, {});
  expect_equal({}, 3, {32, 32}, {});
}

TEST(ImagePass, Normalises) {
  expect_equal(kNormalise, 3, {32, 32}, {});
  expect_equal({.mean = {0.1307F}, .stddev = {0.3081F}}, 1, {28, 28}, {});
  expect_equal({.mean = {0.5F}, .stddev = {0.25F}}, 3, {7, 9}, {});
}

TEST(ImagePass, Flips) {
  for (const int width : {1, 2, 15, 16, 17, 31, 32, 33, 50}) {
    expect_equal({.flip_probability = 1}, 3, {3, width}, {.flip = true});
    expect_equal({.flip_probability = 1}, 1, {3, width}, {.flip = true});
  }
}

TEST(ImagePass, TakesTheCenter) {
  expect_equal({.center_crop = 10}, 3, {17, 32}, {});
  expect_equal({.center_crop = 40}, 3, {17, 39}, {});  // black around
  expect_equal({.center_crop = 20}, 1, {17, 39}, {});
}

TEST(ImagePass, CropsAnyPlaceOfThePaddedPicture) {
  for (int top = 0; top <= 8; ++top) {
    for (int left = 0; left <= 8; ++left) {
      expect_equal(cifar(), 3, {32, 32}, {top, left, (top + left) % 2 == 0});
    }
  }
}

TEST(ImagePass, CropsInsideAndOutside) {
  expect_equal({.random_crop = 5}, 3, {40, 30}, {35, 25, true});
  expect_equal({.random_crop = 5, .padding = 9}, 3, {2, 2}, {0, 0, false});  // nothing but padding
  expect_equal({.random_crop = 40, .padding = 20}, 1, {33, 35}, {13, 2, true});
}

TEST(ImagePass, DoesAllAtOnce) {
  ImageTransform transform = cifar();
  transform.center_crop = 30;
  for (const ImageSize size : {ImageSize{48, 50}, ImageSize{29, 64}, ImageSize{30, 30}}) {
    for (const bool flip : {false, true}) {
      expect_equal(transform, 3, size, {0, 6, flip});
      expect_equal(transform, 3, size, {6, 1, flip});
    }
  }
}

TEST(ImagePass, TakesTheSmallestPicture) {
  expect_equal(kNormalise, 3, {1, 1}, {});
  expect_equal({.random_crop = 1, .padding = 1, .flip_probability = 1}, 1, {1, 1}, {2, 1, true});
  expect_equal({.random_crop = 3, .padding = 1}, 3, {1, 1}, {});
}

TEST(ImagePass, TakesAnyNumberOfChannels) {
  for (const int channels : {2, 4, 5}) {
    expect_equal({.random_crop = 20, .padding = 2, .mean = {0.4F}, .stddev = {0.3F}}, channels, {19, 21},
                 {1, 3, true});
  }
}

TEST(ImagePass, TakesPicturesThatFillManyTiles) {
  ImageTransform transform = kNormalise;
  transform.random_crop = 224;
  expect_equal(transform, 3, {256, 341}, {31, 117, true});
  expect_equal(transform, 3, {256, 341}, {0, 0, false});
}

// Reciprocals that do not give every quotient: the tables do then.
TEST(ImagePass, GivesTheQuotientsOfAnyNumbers) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.001F, 2.0F);
  for (int i = 0; i < 300; ++i) {
    ImageTransform transform{.mean = {uniform(random)}, .stddev = {uniform(random)}};
    if (i % 10 == 0) transform.stddev = {uniform(random) * 1e-37F};
    if (i % 10 == 1) transform.stddev = {uniform(random) * 1e37F};
    Picture picture(1, 16, 16, ImageView::Layout::kPlanar);
    for (size_t byte = 0; byte < 256; ++byte) picture.pixels[byte] = static_cast<uint8_t>(byte);
    ASSERT_EQ(run(transform, picture, {}), expected(transform, picture, {}))
        << transform.mean[0] << " " << transform.stddev[0];
  }
}

TEST(ImagePass, DrawsFromTheSeed) {
  const ImageTransform transform = cifar();
  const Picture picture(3, 32, 32, ImageView::Layout::kPlanar);
  const ImagePass pass(transform, 3);
  ImagePass::Scratch scratch;
  std::vector<float> drawn(3072);
  std::vector<float> given(3072);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    pass.run(picture.view, seed, scratch, drawn.data());
    pass.run(picture.view, draw_augmentation(transform, {32, 32}, seed), scratch, given.data());
    ASSERT_EQ(drawn, given);
  }
}

TEST(ImagePass, RefusesOtherChannelsAndEmptyPictures) {
  EXPECT_THAT(error_of([] { ImagePass(kNormalise, 1); }),
              HasSubstr("1 channel(s), mean and stddev are for 3"));
  const ImagePass pass({}, 3);
  ImagePass::Scratch scratch;
  const Picture grey(1, 4, 4, ImageView::Layout::kPlanar);
  EXPECT_THAT(error_of([&] { pass.run(grey.view, Augmentation{}, scratch, nullptr); }),
              HasSubstr("a picture of 1 channel(s)"));
  EXPECT_THAT(error_of([&] {
                pass.run({grey.pixels.data(), 3, 0, 4}, Augmentation{}, scratch, nullptr);
              }),
              HasSubstr("at least one pixel"));
  const ImagePass crop({.random_crop = 9}, 1);
  EXPECT_THAT(error_of([&] { crop.run(grey.view, uint64_t{1}, scratch, nullptr); }),
              HasSubstr("larger than the padded picture"));
}

// PIL's blend cuts off, so 255 * 0.5 is 127; its grey of (255, 0, 0) is 76.
TEST(ImagePass, ChangesColorsAsPil) {
  Picture picture(3, 1, 2, ImageView::Layout::kInterleaved);
  picture.pixels = {255, 0, 0, 10, 100, 200};
  picture.view.pixels = picture.pixels.data();
  const auto changed = [&](const ColorJitter& jitter, const ColorFactors& factors) {
    const ImageTransform transform{
        .color_jitter = jitter, .layout = Layout::kChannelsLast, .type = Type::kUInt8};
    Augmentation augmentation;
    augmentation.colors = factors;
    return run(transform, picture, augmentation);
  };
  using testing::ElementsAre;
  EXPECT_THAT(changed({.brightness = 1}, {.brightness = 0.5}), ElementsAre(127, 0, 0, 5, 50, 100));
  EXPECT_THAT(changed({.brightness = 1}, {.brightness = 2}), ElementsAre(255, 0, 0, 20, 200, 255));
  EXPECT_THAT(changed({.contrast = 1}, {.contrast = 0}), ElementsAre(80, 80, 80, 80, 80, 80));
  EXPECT_THAT(changed({.saturation = 1}, {.saturation = 0}), ElementsAre(76, 76, 76, 84, 84, 84));
  EXPECT_THAT(changed({.hue = 0.5}, {.hue = 0.5}), ElementsAre(0, 255, 252, 200, 100, 10))
      << "the opposite colour, as far as 256 hues tell";
  EXPECT_THAT(changed({.hue = 0.5}, {.brightness = 0.5}), ElementsAre(255, 0, 0, 10, 104, 200))
      << "only what is set; through 256 hues and back";
}

TEST(ImagePass, ChangedColorsAreTheSameInEveryLayoutAndType) {
  const ColorJitter jitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  Augmentation augmentation{.top = 2, .left = 5, .flip = true};
  augmentation.colors = {{3, 1, 0, 2}, 1.25, 0.75, 1.5, 0.06};
  for (const ImageView::Layout source : kSources) {
    for (const int channels : {1, 3}) {
      const Picture picture(channels, 9, 11, source);
      ImageTransform bytes{.random_crop = 8, .padding = 3, .color_jitter = jitter, .type = Type::kUInt8};
      const std::vector<uint32_t> planar = run(bytes, picture, augmentation);
      for (const Layout layout : kLayouts) {
        for (const Type type : kTypes) {
          ImageTransform transform = bytes;
          transform.layout = layout;
          transform.type = type;
          const std::vector<uint32_t> elements = run(transform, picture, augmentation);
          for (int i = 0; i < 64 * channels; ++i) {
            const int c = i / 64;
            const int place = layout == Layout::kChannelsLast ? i % 64 * channels + c : i;
            ASSERT_EQ(elements[static_cast<size_t>(place)],
                      bits_of(transform, c, static_cast<uint8_t>(planar[static_cast<size_t>(i)])));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::images
