#include "images/pixel_values.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <bit>
#include <cmath>

#include "base/narrow_float.h"

namespace lockstep::images {
namespace {

PixelValues::Arithmetic arithmetic_of(float mean, float stddev) {
  const float high = 1.0F / stddev;
  return {mean, high, static_cast<float>(1.0 / static_cast<double>(stddev) - static_cast<double>(high))};
}

float compute(const PixelValues::Arithmetic& arithmetic, int byte) {
  const auto value = static_cast<float>(byte);
  const float x = std::fma(value, kInverse255High, value * kInverse255Low) - arithmetic.mean;
  return std::fma(x, arithmetic.inverse_high, x * arithmetic.inverse_low);
}

}  // namespace

PixelValues::PixelValues(const ImageTransform& transform, int channels) : type_(transform.type) {
  const size_t given = transform.mean.size();
  if (given > 1 && given != static_cast<size_t>(channels)) {
    throw ConfigError("images", fmt::format("the pictures have {} channel(s), mean and stddev are for {}",
                                            channels, given));
  }
  const bool is_half = type_ == ImageTransform::Type::kFloat16;
  for (int c = 0; c < channels; ++c) {
    const size_t i = given > 1 ? static_cast<size_t>(c) : 0;
    const float mean = given > 0 ? transform.mean[i] : 0.0F;
    const float stddev = given > 0 ? transform.stddev[i] : 1.0F;
    arithmetic_.push_back(arithmetic_of(mean, stddev));
    for (int byte = 0; byte < kBytes; ++byte) {
      const float value = (static_cast<float>(byte) / 255.0F - mean) / stddev;
      floats_.push_back(value);
      halves_.push_back(is_half ? base::narrow_to_half(value) : base::narrow_to_bfloat16(value));
      const float computed = compute(arithmetic_.back(), byte);
      is_arithmetic_ &= std::bit_cast<uint32_t>(computed) == std::bit_cast<uint32_t>(value);
    }
  }
}

}  // namespace lockstep::images
