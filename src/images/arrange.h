#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::images {

// A row of pixels in memory: channel c of pixel i is at [c * channel_step + i * pixel_step].
template <typename Byte>
struct PixelRun {
  Byte* at = nullptr;
  ptrdiff_t channel_step = 0;
  ptrdiff_t pixel_step = 1;
};

// Rows of pixels; each row begins row_step after the one before.
template <typename Byte>
struct PixelRows {
  PixelRun<Byte> first = {};
  ptrdiff_t row_step = 0;
};

// Copies rows of `pixels` pixels between interleaved and planar layouts; `flip` reverses each row.
// Source and target must not overlap. In each, pixel_step or channel_step is 1.
void arrange(const PixelRows<const uint8_t>& source, const PixelRows<uint8_t>& target, int channels, int rows,
             int pixels, bool flip);

}  // namespace lockstep::images
