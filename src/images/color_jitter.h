#pragma once

#include <lockstep/image_files.h>

#include <cstddef>
#include <cstdint>

#include "images/arrange.h"

namespace lockstep::images {

// Changes the colours of `count` pixels in place, in the order of the factors; steps whose range in `jitter`
// is 0 are left out. The arithmetic is that of PIL, which torchvision uses for PIL's pictures. Pictures of
// one channel have neither saturation nor hue.
void change_colors(const PixelRun<uint8_t>& pixels, int channels, size_t count, const ColorJitter& jitter,
                   const ColorFactors& factors);

}  // namespace lockstep::images
