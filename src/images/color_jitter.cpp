#include "images/color_jitter.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::images {
namespace {

constexpr int kBytes = 256;
constexpr int kColors = 3;

// The bytes of one pixel.
struct Rgb {
  uint8_t& red;
  uint8_t& green;
  uint8_t& blue;
};

uint8_t* byte_at(const PixelRun<uint8_t>& pixels, int channel, size_t i) {
  return pixels.at + channel * pixels.channel_step + static_cast<ptrdiff_t>(i) * pixels.pixel_step;
}

Rgb rgb_at(const PixelRun<uint8_t>& pixels, size_t i) {
  return {*byte_at(pixels, 0, i), *byte_at(pixels, 1, i), *byte_at(pixels, 2, i)};
}

uint8_t clipped(int value) { return static_cast<uint8_t>(std::clamp(value, 0, kBytes - 1)); }

// Image.convert("L"): weights of 2^-16, rounded.
int grey_of(const Rgb& pixel) {
  return (pixel.red * 19595 + pixel.green * 38470 + pixel.blue * 7471 + 0x8000) >> 16;
}

// Image.blend() of a grey value and a byte: in float32, and cut off.
uint8_t blend(int grey, int byte, float factor) {
  const float value = static_cast<float>(grey) + factor * static_cast<float>(byte - grey);
  if (value <= 0) return 0;
  return value >= kBytes - 1 ? kBytes - 1 : static_cast<uint8_t>(value);
}

// Blends every byte with the same grey value.
void blend_all(const PixelRun<uint8_t>& pixels, int channels, size_t count, int grey, double factor) {
  std::array<uint8_t, kBytes> table{};
  for (int byte = 0; byte < kBytes; ++byte) {
    table[static_cast<size_t>(byte)] = blend(grey, byte, static_cast<float>(factor));
  }
  for (int channel = 0; channel < channels; ++channel) {
    for (size_t i = 0; i < count; ++i) {
      uint8_t* const byte = byte_at(pixels, channel, i);
      *byte = table[*byte];
    }
  }
}

// ImageEnhance.Contrast: the mean of the grey picture, rounded.
int mean_grey(const PixelRun<uint8_t>& pixels, int channels, size_t count) {
  int64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += channels == kColors ? grey_of(rgb_at(pixels, i)) : *byte_at(pixels, 0, i);
  }
  return static_cast<int>(std::floor(static_cast<double>(sum) / static_cast<double>(count) + 0.5));
}

void change_saturation(const PixelRun<uint8_t>& pixels, size_t count, double factor) {
  const auto narrow = static_cast<float>(factor);
  for (size_t i = 0; i < count; ++i) {
    const Rgb pixel = rgb_at(pixels, i);
    const int grey = grey_of(pixel);
    for (uint8_t* const byte : {&pixel.red, &pixel.green, &pixel.blue}) *byte = blend(grey, *byte, narrow);
  }
}

struct Hsv {
  uint8_t hue = 0;
  uint8_t saturation = 0;
  uint8_t value = 0;
};

// Image.convert("HSV"), with its types: some operations are in float32, some in float64.
Hsv hsv_of(const Rgb& pixel) {
  const auto [red, green, blue] = std::array<int, 3>{pixel.red, pixel.green, pixel.blue};
  const int most = std::max({red, green, blue});
  const int least = std::min({red, green, blue});
  if (most == least) return {0, 0, static_cast<uint8_t>(most)};
  const auto range = static_cast<float>(most - least);
  const float saturation = range / static_cast<float>(most);
  const float from_red = static_cast<float>(most - red) / range;
  const float from_green = static_cast<float>(most - green) / range;
  const float from_blue = static_cast<float>(most - blue) / range;
  float hue = 0;
  if (red == most) {
    hue = from_blue - from_green;
  } else if (green == most) {
    hue = static_cast<float>(2.0 + from_red - from_blue);
  } else {
    hue = static_cast<float>(4.0 + from_green - from_red);
  }
  hue = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  return {clipped(static_cast<int>(hue * 255.0)), clipped(static_cast<int>(saturation * 255.0)),
          static_cast<uint8_t>(most)};
}

// Image.convert("RGB") of it.
std::array<uint8_t, 3> rgb_of(const Hsv& pixel) {
  const uint8_t value = pixel.value;
  if (pixel.saturation == 0) return {value, value, value};
  const auto bright = static_cast<double>(value);
  const auto sector = static_cast<int>(std::floor(pixel.hue * 6.0 / 255.0));
  const auto rest = static_cast<float>(pixel.hue * 6.0 / 255.0 - static_cast<double>(sector));
  const auto share = static_cast<float>(static_cast<float>(pixel.saturation) / 255.0);
  const auto rounded = [&](double of) { return clipped(static_cast<int>(std::round(bright * of))); };
  const uint8_t low = rounded(1.0 - share);
  const uint8_t falling = rounded(1.0 - static_cast<double>(share * rest));
  const uint8_t rising = rounded(1.0 - share * (1.0 - rest));
  switch (sector % 6) {
    case 0: return {value, rising, low};
    case 1: return {falling, value, low};
    case 2: return {low, value, rising};
    case 3: return {low, falling, value};
    case 4: return {rising, low, value};
    default: return {value, low, falling};
  }
}

void shift_hue(const PixelRun<uint8_t>& pixels, size_t count, double factor) {
  const auto shift = static_cast<uint8_t>(static_cast<int>(factor * 255));
  for (size_t i = 0; i < count; ++i) {
    const Rgb pixel = rgb_at(pixels, i);
    Hsv hsv = hsv_of(pixel);
    hsv.hue = static_cast<uint8_t>(hsv.hue + shift);
    const auto [red, green, blue] = rgb_of(hsv);
    pixel.red = red;
    pixel.green = green;
    pixel.blue = blue;
  }
}

}  // namespace

void change_colors(const PixelRun<uint8_t>& pixels, int channels, size_t count, const ColorJitter& jitter,
                   const ColorFactors& factors) {
  const bool has_colors = channels == kColors;
  for (const int step : factors.order) {
    if (step == 0 && jitter.brightness > 0) blend_all(pixels, channels, count, 0, factors.brightness);
    if (step == 1 && jitter.contrast > 0) {
      blend_all(pixels, channels, count, mean_grey(pixels, channels, count), factors.contrast);
    }
    if (step == 2 && jitter.saturation > 0 && has_colors)
      change_saturation(pixels, count, factors.saturation);
    if (step == 3 && jitter.hue > 0 && has_colors) shift_hue(pixels, count, factors.hue);
  }
}

}  // namespace lockstep::images
