#include "images/resize.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "images/image_pass.h"

namespace lockstep::images {
namespace {

// The picture of golden/make_resize.py.
std::vector<uint8_t> picture(int height, int width, int channels, ImageView::Layout layout) {
  std::vector<uint8_t> pixels(static_cast<size_t>(height * width * channels));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const int place = layout == ImageView::Layout::kPlanar ? (c * height + y) * width + x
                                                               : (y * width + x) * channels + c;
        pixels[static_cast<size_t>(place)] =
            static_cast<uint8_t>((y * y * 31 + x * x * 17 + x * y * 7 + c * 85) % 251);
      }
    }
  }
  return pixels;
}

uint64_t digest(const std::vector<uint8_t>& bytes) {
  uint64_t value = 0xcbf29ce484222325U;
  for (const uint8_t byte : bytes) value = (value ^ byte) * 0x100000001b3U;
  return value;
}

std::vector<uint8_t> transformed(ImageTransform transform, const ImageView& image,
                                 const Augmentation& augmentation = {}) {
  transform.type = ImageTransform::Type::kUInt8;
  transform.layout = ImageTransform::Layout::kChannelsLast;
  const ImageSize size = transformed_size(transform, {image.height, image.width});
  std::vector<uint8_t> out(static_cast<size_t>(size.height * size.width * image.channels));
  ImagePass::Scratch scratch;
  ImagePass(transform, image.channels).run(image, augmentation, scratch, out.data());
  return out;
}

TEST(Resize, EqualsPillowBitForBit) {
  std::ifstream golden(std::string(std::getenv("LOCKSTEP_SOURCE_DIR")) +
                       "/tests/unit/images/golden/resize.txt");
  int height = 0;
  int width = 0;
  int channels = 0;
  int size = 0;
  uint64_t expected = 0;
  int cases = 0;
  while (golden >> height >> width >> channels >> size >> expected) {
    for (const auto layout : {ImageView::Layout::kPlanar, ImageView::Layout::kInterleaved}) {
      const std::vector<uint8_t> pixels = picture(height, width, channels, layout);
      const std::vector<uint8_t> out =
          transformed({.resize = size}, {pixels.data(), channels, height, width, layout});
      EXPECT_EQ(digest(out), expected) << height << "x" << width << "x" << channels << " to " << size;
      ++cases;
    }
  }
  EXPECT_EQ(cases, 24);
}

// A crop computes what it shows and no more; the pixels are those of the whole.
TEST(Resize, OfAPartEqualsThePartOfTheWhole) {
  for (const auto layout : {ImageView::Layout::kPlanar, ImageView::Layout::kInterleaved}) {
    for (const int channels : {1, 2, 3}) {
      const std::vector<uint8_t> pixels = picture(60, 83, channels, layout);
      const ImageView image{pixels.data(), channels, 60, 83, layout};
      const std::vector<uint8_t> whole = transformed({.resize = 40}, image);  // 40x55
      for (const Augmentation& place :
           {Augmentation{0, 0, false}, Augmentation{19, 34, false}, Augmentation{7, 11, false}}) {
        const std::vector<uint8_t> part = transformed({.resize = 40, .random_crop = 21}, image, place);
        for (int y = 0; y < 21; ++y) {
          for (int x = 0; x < 21 * channels; ++x) {
            ASSERT_EQ(part[static_cast<size_t>(y * 21 * channels + x)],
                      whole[static_cast<size_t>(((place.top + y) * 55 + place.left) * channels + x)])
                << y << " " << x;
          }
        }
      }
    }
  }
}

TEST(Resize, KeepsNothingOfAnEarlierPicture) {
  const ImageTransform transform{.resize = 8,
                                 .center_crop = 8,
                                 .layout = ImageTransform::Layout::kChannelsLast,
                                 .type = ImageTransform::Type::kUInt8};
  const ImagePass pass(transform, 3);
  ImagePass::Scratch shared;
  for (const ImageSize size : {ImageSize{30, 20}, ImageSize{9, 9}, ImageSize{20, 30}, ImageSize{30, 20}}) {
    const std::vector<uint8_t> pixels = picture(size.height, size.width, 3, ImageView::Layout::kPlanar);
    const ImageView image{pixels.data(), 3, size.height, size.width};
    std::vector<uint8_t> out(8 * 8 * 3);
    pass.run(image, Augmentation{}, shared, out.data());
    EXPECT_EQ(out, transformed(transform, image));
  }
}

TEST(Resize, ShowsBlackWhereOnlyPaddingIsSeen) {
  const std::vector<uint8_t> pixels = picture(4, 4, 3, ImageView::Layout::kPlanar);
  const std::vector<uint8_t> out =
      transformed({.resize = 2, .random_crop = 3, .padding = 5}, {pixels.data(), 3, 4, 4});
  EXPECT_EQ(out, std::vector<uint8_t>(27, 0));
}

}  // namespace
}  // namespace lockstep::images
