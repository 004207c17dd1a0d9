#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/split_mix.h"
#include "images/image_transform.h"

namespace lockstep {
namespace {

// The number of a picture's bytes must not overflow.
constexpr int kLongestSide = 1 << 16;

void check_side(const char* field, int value) {
  if (value < 0 || value > kLongestSide) {
    throw ConfigError("images", fmt::format("{} must be from 0 to {}: {}", field, kLongestSide, value));
  }
}

// Output k of SplitMix64 with this seed.
uint64_t random_number(uint64_t seed, uint64_t k) { return base::split_mix(seed + k * base::kSplitMixStep); }

int scale_to(uint64_t number, int count) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int>((static_cast<Wide>(number) * static_cast<Wide>(count)) >> 64);
}

void check_crop_fits(const ImageTransform& transform, ImageSize size) {
  const ImageSize padded{size.height + 2 * transform.padding, size.width + 2 * transform.padding};
  if (transform.random_crop <= std::min(padded.height, padded.width)) return;
  throw ConfigError("images",
                    fmt::format("random_crop is larger than the padded picture: random_crop={}, picture "
                                "{}x{} with padding={}",
                                transform.random_crop, size.height, size.width, transform.padding));
}

// The upper 24 bits as a fraction of 1 in [low, high), in float32 as LibTorch's uniform_().
float uniform(uint64_t number, float low, float high) {
  return static_cast<float>(number >> 40) * 0x1p-24F * (high - low) + low;
}

// Python's round(): halves to even.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

// torchvision's RandomResizedCrop.get_params().
Augmentation draw_part(const ImageTransform& transform, ImageSize size, uint64_t seed) {
  constexpr uint64_t kTries = 10;
  constexpr uint64_t kFirstNumber = 3;
  const auto [least_area, most_area] = transform.crop_area;
  const auto [least_ratio, most_ratio] = transform.crop_ratio;
  const double area = static_cast<double>(size.height) * size.width;
  for (uint64_t i = 0; i < kTries; ++i) {
    const uint64_t first = kFirstNumber + 2 * i;
    const double part_area = area * uniform(random_number(seed, first), static_cast<float>(least_area),
                                            static_cast<float>(most_area));
    const double ratio =
        std::exp(uniform(random_number(seed, first + 1), std::log(static_cast<float>(least_ratio)),
                         std::log(static_cast<float>(most_ratio))));
    const ImageSize part{rounded(std::sqrt(part_area / ratio)), rounded(std::sqrt(part_area * ratio))};
    if (part.width < 1 || part.width > size.width || part.height < 1 || part.height > size.height) continue;
    return {.top = scale_to(random_number(seed, 0), size.height - part.height + 1),
            .left = scale_to(random_number(seed, 1), size.width - part.width + 1),
            .flip = false,
            .part = part,
            .colors = {}};
  }
  // The largest part of an allowed ratio, from the centre.
  ImageSize part = size;
  const double ratio = static_cast<double>(size.width) / size.height;
  if (ratio < least_ratio) {
    part.height = std::min(size.height, rounded(size.width / least_ratio));
  } else if (ratio > most_ratio) {
    part.width = std::min(size.width, rounded(size.height * most_ratio));
  }
  return {.top = (size.height - part.height) / 2,
          .left = (size.width - part.width) / 2,
          .flip = false,
          .part = part,
          .colors = {}};
}

// torchvision's ColorJitter.make_params().
ColorFactors draw_colors(const ColorJitter& jitter, uint64_t seed) {
  constexpr uint64_t kOrder = 32;
  constexpr int kPermutations = 24;
  ColorFactors drawn;
  for (int i = scale_to(random_number(seed, kOrder), kPermutations); i > 0; --i) {
    std::next_permutation(drawn.order.begin(), drawn.order.end());
  }
  const auto factor = [&](uint64_t k, double low, double high) {
    return uniform(random_number(seed, kOrder + k), static_cast<float>(low), static_cast<float>(high));
  };
  const auto around_one = [&](uint64_t k, double range) {
    return range > 0 ? factor(k, std::max(0.0, 1 - range), 1 + range) : 1;
  };
  drawn.brightness = around_one(1, jitter.brightness);
  drawn.contrast = around_one(2, jitter.contrast);
  drawn.saturation = around_one(3, jitter.saturation);
  if (jitter.hue > 0) drawn.hue = factor(4, -jitter.hue, jitter.hue);
  return drawn;
}

void check_jitter(const char* field, double value, double most) {
  if (value >= 0 && value <= most && std::isfinite(value)) return;
  throw ConfigError("images", fmt::format("color_jitter.{} must be a number from 0{}: {}", field,
                                          std::isinf(most) ? "" : fmt::format(" to {}", most), value));
}

void check_range(const char* field, const std::array<double, 2>& range, double most) {
  if (range[0] > 0 && range[0] <= range[1] && range[1] <= most) return;
  throw ConfigError("images", fmt::format("{} must be two rising numbers above 0{}: {}, {}", field,
                                          std::isinf(most) ? "" : fmt::format(" and at most {}", most),
                                          range[0], range[1]));
}

// As torchvision: halves are rounded to even, and a smaller picture is padded more at the end.
int center_offset(int side, int crop) {
  if (crop > side) return -((crop - side) / 2);
  const int difference = side - crop;
  return difference / 2 + (difference % 4 == 3 ? 1 : 0);
}

}  // namespace

void ImageTransform::validate() const {
  check_side("resize", resize);
  check_side("center_crop", center_crop);
  check_side("random_crop", random_crop);
  check_side("padding", padding);
  check_side("random_resized_crop", random_resized_crop);
  if (random_resized_crop > 0 && (resize > 0 || center_crop > 0 || random_crop > 0)) {
    throw ConfigError("images", "random_resized_crop excludes resize, center_crop and random_crop");
  }
  check_range("crop_area", crop_area, 1);
  check_range("crop_ratio", crop_ratio, std::numeric_limits<double>::infinity());
  if (padding > 0 && random_crop == 0) {
    throw ConfigError("images", fmt::format("padding is for random_crop, which is not set: {}", padding));
  }
  if (!(flip_probability >= 0 && flip_probability <= 1)) {
    throw ConfigError("images", fmt::format("flip_probability must be from 0 to 1: {}", flip_probability));
  }
  constexpr double kAny = std::numeric_limits<double>::infinity();
  check_jitter("brightness", color_jitter.brightness, kAny);
  check_jitter("contrast", color_jitter.contrast, kAny);
  check_jitter("saturation", color_jitter.saturation, kAny);
  check_jitter("hue", color_jitter.hue, 0.5);
  if (mean.size() != stddev.size()) {
    throw ConfigError("images", fmt::format("mean and stddev must have equally many numbers: {} and {}",
                                            mean.size(), stddev.size()));
  }
  for (size_t i = 0; i < mean.size(); ++i) {
    if (std::isfinite(mean[i]) && std::isfinite(stddev[i]) && stddev[i] > 0) continue;
    throw ConfigError(
        "images", fmt::format("mean must be finite and stddev above 0: channel {} has {} and {}", i, mean[i],
                              stddev[i]));
  }
  if (type == Type::kUInt8 && !mean.empty()) {
    throw ConfigError("images", "uint8 keeps the bytes of a picture: mean and stddev need a floating type");
  }
}

size_t bytes_of(ImageTransform::Type type) {
  switch (type) {
    case ImageTransform::Type::kFloat32: return 4;
    case ImageTransform::Type::kUInt8: return 1;
    default: return 2;
  }
}

ImageSize transformed_size(const ImageTransform& transform, ImageSize size) {
  if (transform.random_resized_crop > 0)
    return {transform.random_resized_crop, transform.random_resized_crop};
  const ImageSize resized = images::resized_size(transform, size);
  return images::sample_window(transform, resized, {}).size;
}

Augmentation draw_augmentation(const ImageTransform& transform, ImageSize size, uint64_t seed) {
  Augmentation drawn;
  if (transform.random_resized_crop > 0) drawn = draw_part(transform, size, seed);
  if (transform.random_crop > 0) {
    const ImageSize center = images::center_window(transform, images::resized_size(transform, size)).size;
    check_crop_fits(transform, center);
    const int places = 2 * transform.padding - transform.random_crop + 1;
    drawn.top = scale_to(random_number(seed, 0), center.height + places);
    drawn.left = scale_to(random_number(seed, 1), center.width + places);
  }
  const double fraction = static_cast<double>(random_number(seed, 2) >> 11) * 0x1p-53;
  drawn.flip = fraction < transform.flip_probability;
  if (transform.color_jitter.is_set()) drawn.colors = draw_colors(transform.color_jitter, seed);
  return drawn;
}

namespace images {

ImageSize resized_size(const ImageTransform& transform, ImageSize size) {
  if (transform.resize == 0) return size;
  const bool wide = size.width > size.height;
  const int shorter = wide ? size.height : size.width;
  const int longer = wide ? size.width : size.height;
  const double scaled = static_cast<double>(transform.resize) * longer / shorter;
  if (scaled > kLongestSide) {
    throw ConfigError("images", fmt::format("a picture of {}x{} is too long for resize={}", size.height,
                                            size.width, transform.resize));
  }
  const int other = static_cast<int>(scaled);
  return wide ? ImageSize{transform.resize, other} : ImageSize{other, transform.resize};
}

ImageWindow center_window(const ImageTransform& transform, ImageSize resized) {
  ImageWindow window{0, 0, resized, {0, 0, resized.height, resized.width}};
  if (transform.center_crop == 0) return window;
  const int side = transform.center_crop;
  window.top = center_offset(resized.height, side);
  window.left = center_offset(resized.width, side);
  window.size = {side, side};
  window.visible = {std::max(0, window.top), std::max(0, window.left),
                    std::min(resized.height, window.top + side), std::min(resized.width, window.left + side)};
  return window;
}

ImageWindow sample_window(const ImageTransform& transform, ImageSize resized,
                          const Augmentation& augmentation) {
  ImageWindow window = center_window(transform, resized);
  if (transform.random_crop == 0) return window;
  check_crop_fits(transform, window.size);
  window.top += augmentation.top - transform.padding;
  window.left += augmentation.left - transform.padding;
  window.size = {transform.random_crop, transform.random_crop};
  return window;
}

}  // namespace images
}  // namespace lockstep
