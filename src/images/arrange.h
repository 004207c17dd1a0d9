#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::images {

// Pixels in memory: channel c of pixel i is at [c * channel_step + i * pixel_step].
template <typename Byte>
struct PixelRun {
  Byte* at = nullptr;
  ptrdiff_t channel_step = 0;
  ptrdiff_t pixel_step = 1;
};

// Rows of such pixels; the next row begins row_step after the one before.
template <typename Byte>
struct PixelRows {
  PixelRun<Byte> first = {};
  ptrdiff_t row_step = 0;
};

// Copies rows of `pixels` pixels into the target's order, the last pixel of a row first
// where `flip`. The two do not overlap. In each, either pixel_step or channel_step is 1.
void arrange(const PixelRows<const uint8_t>& source, const PixelRows<uint8_t>& target, int channels, int rows,
             int pixels, bool flip);

}  // namespace lockstep::images
