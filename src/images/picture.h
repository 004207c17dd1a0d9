#pragma once

#include <lockstep/image_source.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep::images {

// Decoders of one picture to red, green and blue, interleaved, into `pixels`: grey three
// times, palettes looked up, transparency dropped, 16 bits cut to 8, no gamma applied and
// no rotation, as torchvision's image folders do. ConfigError naming the file: broken,
// cut, or of more than kMaxPixels.
ImageView decode_jpeg(std::span<const uint8_t> file, const std::filesystem::path& path,
                      std::vector<uint8_t>& pixels);
ImageView decode_png(std::span<const uint8_t> file, const std::filesystem::path& path,
                     std::vector<uint8_t>& pixels);

// Either, told apart by its first bytes.
ImageView decode_picture(std::span<const uint8_t> file, const std::filesystem::path& path,
                         std::vector<uint8_t>& pixels);

// The first bytes of every PNG.
inline constexpr uint8_t kPngSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

}  // namespace lockstep::images
