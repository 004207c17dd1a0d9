#pragma once

#include <lockstep/error.h>

#include <cstdint>
#include <string_view>

#include "images/picture.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// A JPEG or a PNG.
inline bool takes_picture(std::string_view bytes) {
  std::vector<uint8_t> pixels;
  try {
    const ImageView view = images::decode_picture(
        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "file", pixels);
    require(int64_t{view.height} * view.width * 3 <= static_cast<int64_t>(pixels.size()),
            "the picture lies in its memory");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
