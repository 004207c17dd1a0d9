#include "track/png.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/track.h>
#include <png.h>

namespace lockstep::track {
namespace {

png_uint_32 format_of(const Image& image) {
  switch (image.channels) {
    case 1: return PNG_FORMAT_GRAY;
    case 3: return PNG_FORMAT_RGB;
    case 4: return PNG_FORMAT_RGBA;
    default: throw ConfigError("track", fmt::format("an image has 1, 3 or 4 channels: {}", image.channels));
  }
}

}  // namespace

std::string encode_png(const Image& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.format = format_of(image);
  const int64_t bytes = int64_t{image.height} * image.width * image.channels;
  if (image.height <= 0 || image.width <= 0 || bytes != static_cast<int64_t>(image.pixels.size())) {
    throw ConfigError("track",
                      fmt::format("an image of height {}, width {} and {} channels needs as many bytes: {}",
                                  image.height, image.width, image.channels, image.pixels.size()));
  }
  header.height = static_cast<png_uint_32>(image.height);
  header.width = static_cast<png_uint_32>(image.width);

  std::string png(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = png.size();
  if (png_image_write_to_memory(&header, png.data(), &size, 0, image.pixels.data(), 0, nullptr) == 0) {
    throw ConfigError("track", fmt::format("cannot encode a PNG: {}", header.message));
  }
  png.resize(size);
  return png;
}

}  // namespace lockstep::track
