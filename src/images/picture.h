#pragma once

#include <lockstep/image_files.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep::images {

// Decodes a JPEG or PNG file, recognised by its first bytes, to interleaved RGB in `pixels`: grey
// becomes RGB, palettes are applied, alpha is dropped, 16 bits are cut to 8, gamma and orientation
// are ignored, as torchvision's image folders do. ConfigError naming the file: it is damaged,
// truncated, or has more than kMaxPixels pixels.
ImageView decode_picture(std::span<const uint8_t> file, const std::filesystem::path& path,
                         std::vector<uint8_t>& pixels);

}  // namespace lockstep::images
