#pragma once

#include <string>

namespace lockstep {
struct Image;
}

namespace lockstep::track {

// The image as the bytes of a PNG file. ConfigError: channels, height or width that no
// PNG has, or a number of pixels that does not fit them.
std::string encode_png(const Image& image);

}  // namespace lockstep::track
