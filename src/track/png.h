#pragma once

#include <string>

namespace lockstep {
struct Image;
}

namespace lockstep::track {

// The image as the bytes of a PNG file. ConfigError: a number of channels, a height or a width
// that PNG does not have, or a number of pixels that does not match them.
std::string encode_png(const Image& image);

}  // namespace lockstep::track
