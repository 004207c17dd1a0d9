#pragma once

#include <lockstep/image_files.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::images {

// The value of each byte in each channel: (byte / 255 - mean) / stddev in float32, rounded to the
// transform's type. The tables are the definition. Vector instructions compute the same values
// without tables; each division becomes a multiplication by a reciprocal of twice the precision:
//
//   x = fma(byte, high(1/255), byte * low(1/255)) - mean
//   value = fma(x, high(1/stddev), x * low(1/stddev))
//
// The constructor checks for all 256 bytes of all channels that both give the same bits.
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
  // kBytes values of a channel; table16 only for 16-bit types.
  const float* table(int channel) const { return &floats_[static_cast<size_t>(channel) * kBytes]; }
  const uint16_t* table16(int channel) const { return &halves_[static_cast<size_t>(channel) * kBytes]; }

  const Arithmetic& arithmetic(int channel) const { return arithmetic_[static_cast<size_t>(channel)]; }
  // Whether the arithmetic gives the bits of the tables.
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

// Writes the values of `count` bytes of one channel to `out`, an array of the values' type, which
// must not be kUInt8.
void convert_channel(const PixelValues& values, int channel, const uint8_t* bytes, size_t count, void* out);
// The same for interleaved channels; the first byte is of channel 0.
void convert_interleaved(const PixelValues& values, const uint8_t* bytes, size_t count, void* out);

}  // namespace lockstep::images
