#pragma once

#include <cstddef>
#include <cstdint>

#include "images/pixel_values.h"

namespace lockstep::images {

// Writes what bytes become, in the values' type, which is none of kUInt8. `out` holds
// `count` elements and begins at one.
void convert_channel(const PixelValues& values, int channel, const uint8_t* bytes, size_t count, void* out);
// The same for bytes that take turns in the channels, from the first on.
void convert_interleaved(const PixelValues& values, const uint8_t* bytes, size_t count, void* out);

}  // namespace lockstep::images
