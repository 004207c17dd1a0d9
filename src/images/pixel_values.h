#pragma once

#include <lockstep/image_transform.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::images {

// What the bytes of each channel become: (byte / 255 - mean) / stddev in float32, and that
// rounded to the transform's type. The tables are the definition. Vector instructions
// compute the same without them, each division as a multiplication by a reciprocal of
// twice the precision:
//
//   x = fma(byte, high(1/255), byte * low(1/255)) - mean
//   value = fma(x, high(1/stddev), x * low(1/stddev))
//
// which is tried for all 256 bytes of all channels before it is used.
class PixelValues {
 public:
  static constexpr int kBytes = 256;

  struct Arithmetic {
    float mean = 0;
    float inverse_high = 1;
    float inverse_low = 0;
  };

  // ConfigError: the transform's mean is for another number of channels.
  PixelValues(const ImageTransform& transform, int channels);

  int channels() const { return static_cast<int>(arithmetic_.size()); }
  ImageTransform::Type type() const { return type_; }
  // kBytes values of a channel; the second for 16-bit types alone.
  const float* table(int channel) const { return &floats_[static_cast<size_t>(channel) * kBytes]; }
  const uint16_t* table16(int channel) const { return &halves_[static_cast<size_t>(channel) * kBytes]; }

  const Arithmetic& arithmetic(int channel) const { return arithmetic_[static_cast<size_t>(channel)]; }
  // Whether the arithmetic gives the tables' bits.
  bool is_arithmetic() const { return is_arithmetic_; }

 private:
  ImageTransform::Type type_;
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
  std::vector<Arithmetic> arithmetic_;
  bool is_arithmetic_ = true;
};

// 1/255, see above.
inline constexpr float kInverse255High = 1.0F / 255.0F;
inline constexpr float kInverse255Low =
    static_cast<float>(1.0 / 255.0 - static_cast<double>(kInverse255High));

}  // namespace lockstep::images
