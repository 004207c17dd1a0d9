#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "images/tensor_layout.h"

namespace lockstep::images {

// The header of a file of NumPy (.npy) with integers.
struct NpyHeader {
  IntegerType type;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // of the elements, which are all of the rest
};

// ConfigError: no such file, elements that are no integers or have the most significant
// byte first, the first index fastest, or not as many bytes as the shape says.
NpyHeader parse_npy(std::span<const uint8_t> file, const std::filesystem::path& path);

}  // namespace lockstep::images
