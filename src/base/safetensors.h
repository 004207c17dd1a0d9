#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_text.h"

namespace lockstep::base {

// The header of a safetensors file: 8 bytes with the length of a JSON text, little
// endian, then the text, then the data of the tensors without a gap between them.

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32"; one that dtype_bytes knows
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its bytes, counted from the end of the header
  int64_t end = 0;
};

struct SafetensorsText {
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t bytes = 0;  // of the header, with its length: where the data begins
};

// What a tensor must not be called: the format's own entry.
inline constexpr char kSafetensorsMetadata[] = "__metadata__";
inline constexpr int64_t kSafetensorsLengthBytes = 8;
// The format's own limit.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// Dimensions that a tensor of ours may have.
inline constexpr size_t kMaxTensorDimensions = 64;

// Of an element; nullopt for a name that safetensors does not know.
std::optional<int64_t> dtype_bytes(std::string_view dtype);

// The bytes of a tensor of this shape; nullopt where they do not fit into int64_t, with
// dimensions of 0 left out of the product too, or where a size is negative.
std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, int64_t bytes_per_element);

// The length that the first 8 bytes of a file say. A fault unless the header fits into the
// file and the format's limit.
int64_t safetensors_text_bytes(std::string_view first_bytes, int64_t file_bytes,
                               const std::filesystem::path& path, FileFault fault);

// `text` is what follows the first 8 bytes. A fault unless the tensors are all of the data,
// in one piece each, without overlap.
SafetensorsText parse_safetensors(std::string_view text, int64_t file_bytes,
                                  const std::filesystem::path& path, FileFault fault);

}  // namespace lockstep::base
