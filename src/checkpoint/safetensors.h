#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/safetensors.h"

namespace lockstep::checkpoint {

// The header of a safetensors file (base/safetensors.h), with LibTorch's dtypes.

struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its bytes, counted from the end of the header
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t bytes = 0;  // of the header, with its length: where the data begins
};

// What a tensor must not be called: the format's own entry.
inline constexpr const char* kMetadataKey = base::kSafetensorsMetadata;
inline constexpr int64_t kLengthBytes = base::kSafetensorsLengthBytes;
inline constexpr int64_t kMaxHeaderBytes = base::kMaxSafetensorsHeaderBytes;

// The bytes of the header. `header.bytes` is not used. The data that follows lies on a
// multiple of 8. ConfigError for a name that is not UTF-8, or too many tensors.
std::string encode_header(const SafetensorsHeader& header);

// The length that the first 8 bytes of a file say. CheckpointError unless the header
// fits into the file and the format's limit.
int64_t header_text_bytes(std::string_view first_bytes, int64_t file_bytes,
                          const std::filesystem::path& path);

// `text` is what follows the first 8 bytes. CheckpointError unless the tensors are all of
// the data, in one piece each, without overlap.
SafetensorsHeader parse_header(std::string_view text, int64_t file_bytes, const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
