#pragma once

#include <lockstep/image_files.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "images/packed_images.h"

namespace lockstep::images {

// Where in a file a tensor is, for messages.
struct TensorPlace {
  const std::filesystem::path& path;
  std::string_view name;
};

// "'file': tensor 'name': reason".
[[noreturn]] void fail_tensor(const TensorPlace& place, std::string_view reason);

// A tensor of images of bytes: [n, height, width], [n, 1 or 3, height, width] or
// [n, height, width, 1 or 3]. ConfigError: any other shape, or no images. The bytes are
// known to fit into a file.
struct ImageTensor {
  int64_t count = 0;
  ImageShape shape;
};
ImageTensor image_tensor(std::span<const int64_t> dimensions, const TensorPlace& place);

// Integers, least significant byte first.
struct IntegerType {
  int bytes = 0;  // 1, 2, 4 or 8
  bool is_signed = false;
};

// One for each integer. ConfigError: out of range, with the byte of the file where the
// bytes begin at this one, else with its number.
ImageLabels integer_labels(std::span<const uint8_t> bytes, IntegerType type, ImageClasses classes,
                           std::optional<uint64_t> file_offset, const TensorPlace& place);

}  // namespace lockstep::images
