#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// What becomes of a picture on its way into a batch. The steps happen in the order of the
// fields; each is left out where its field has the default.
//
//   ImageTransform train{.random_crop = 32, .padding = 4, .flip_probability = 0.5,
//                        .mean = {0.5071, 0.4865, 0.4409}, .stddev = {0.2673, 0.2564, 0.2762}};
//   ImageTransform test{.resize = 256, .center_crop = 224};
//
// Equal to torchvision 0.26 on pictures of PIL, bit for bit: Resize(resize), CenterCrop,
// RandomCrop(random_crop, padding), RandomHorizontalFlip, ToTensor, Normalize(mean, stddev),
// where the random numbers are the same. They are drawn from the sample's seed alone, see
// draw_augmentation().
struct ImageTransform {
  enum class Layout { kChannelsFirst, kChannelsLast };  // in memory; the shape is [C, H, W]
  enum class Type { kFloat32, kFloat16, kBFloat16, kUInt8 };

  // The shorter side in pixels; the longer one keeps the ratio. Bilinear with antialias, as
  // PIL does it: the horizontal pass, then the vertical one, each rounded to bytes. (New
  // versions of PIL take them the other way round for tall pictures; bytes then differ by
  // one here and there.)
  int resize = 0;
  // A square from the middle. What lies outside of a smaller picture is black.
  int center_crop = 0;
  // A square from a random place of the picture with `padding` black pixels on each side.
  int random_crop = 0;
  int padding = 0;
  // Left and right exchanged.
  double flip_probability = 0;
  // A byte b becomes (b / 255 - mean) / stddev, in float32 and in this order: b / 255 where
  // both are empty. One number for all channels, or one each.
  std::vector<float> mean = {};
  std::vector<float> stddev = {};

  Layout layout = Layout::kChannelsFirst;
  // Rounded from float32 to the nearest, ties to even. kUInt8 keeps the bytes.
  Type type = Type::kFloat32;

  // ConfigError names the field that is out of range, or at odds with another.
  void validate() const;
  // Whether a picture looks different in every epoch.
  bool is_random() const { return random_crop > 0 || flip_probability > 0; }
};

size_t bytes_of(ImageTransform::Type type);

// Height and width in pixels.
struct ImageSize {
  int height = 0;
  int width = 0;

  bool operator==(const ImageSize&) const = default;
};

// The size of what the transform makes of a picture of this size. ConfigError: the crop is
// larger than the padded picture.
ImageSize transformed_size(const ImageTransform& transform, ImageSize size);

// The random numbers of one sample: the crop's upper left corner in the padded picture,
// and whether the crop is flipped.
struct Augmentation {
  int top = 0;
  int left = 0;
  bool flip = false;
};

// Draws them for a picture of this size. Number k of a seed is SplitMix64's output k; top
// is number 0, left number 1 (each scaled to its range by the upper half of the 128-bit
// product), and flip number 2 (its upper 53 bits as a fraction, below the probability). A
// step that is left out moves no other number. ConfigError as transformed_size().
Augmentation draw_augmentation(const ImageTransform& transform, ImageSize size, uint64_t seed);

}  // namespace lockstep
