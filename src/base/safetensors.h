#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace lockstep::base {

// Reads the header of a safetensors file. The format: 8 bytes with the length of a JSON text (little
// endian), the text, then the data of the tensors without gaps.

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32"; a name that dtype_bytes knows
  std::vector<int64_t> shape;
  int64_t begin = 0;  // byte offsets from the end of the header
  int64_t end = 0;
};

struct SafetensorsText {
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t bytes = 0;  // of length field and text: the offset of the data
};

// Reserved by the format: no tensor may have this name.
inline constexpr char kSafetensorsMetadata[] = "__metadata__";
inline constexpr int64_t kSafetensorsLengthBytes = 8;
// The limit of the format.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// The largest number of dimensions that is accepted.
inline constexpr size_t kMaxTensorDimensions = 64;

// The size of an element; nullopt: safetensors has no such dtype.
std::optional<int64_t> dtype_bytes(std::string_view dtype);

// The size of a tensor of this shape. nullopt: a dimension is negative, or the product of the dimensions
// that are not 0 overflows int64_t.
std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, int64_t bytes_per_element);

// The length of the JSON text, from the first 8 bytes of the file. A fault unless the header fits into
// the file and the limit of the format.
int64_t safetensors_text_bytes(std::string_view first_bytes, int64_t file_bytes,
                               const std::filesystem::path& path, const FileFault& fault);

// `text` is the JSON text. A fault unless the tensors cover all of the data, without gaps or overlaps.
SafetensorsText parse_safetensors(std::string_view text, int64_t file_bytes,
                                  const std::filesystem::path& path, const FileFault& fault);

}  // namespace lockstep::base
