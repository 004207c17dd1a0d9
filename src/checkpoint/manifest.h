#pragma once

#include <c10/core/ScalarType.h>

#include <lockstep/json.h>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr int kFormatVersion = 1;

struct FileEntry {
  std::string name;  // in the folder of the manifest
  int64_t bytes = 0;
  // xxh3-128 of the safetensors header, with its length. The rest of a file is pieces, each
  // with a checksum of its own: every byte is covered once, and in parts that can be
  // written, read and compared each by itself.
  std::string header_checksum;
};

// A run of a tensor's elements that lies in one file.
struct Piece {
  int file = 0;          // index in Manifest::files
  int64_t offset = 0;    // of its first byte in the file
  int64_t first = 0;     // its first element in the tensor
  int64_t count = 0;     // elements
  std::string checksum;  // xxh3-128 of its bytes
};

struct TensorEntry {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;  // in the order of their elements; together all of the tensor

  int64_t numel() const;
};

// The table of contents of a checkpoint.
struct Manifest {
  // Counts the saves of a folder: of two checkpoints the one with the higher number is
  // newer, also where a run went back to an earlier step.
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t epoch = 0;
  int world_size = 1;
  std::optional<double> metric;
  bool best = false;     // it was the best when it was saved, by the trainer's criterion
  std::string time;      // UTC, "2026-01-31T12:00:00Z"
  std::string lockstep;  // version that wrote it
  std::string libtorch;
  std::vector<FileEntry> files;
  std::map<std::string, TensorEntry> tensors;
  Json metadata = Json::object();

  int64_t total_bytes() const;

  // JSON whose first member is the checksum of the text behind it.
  std::string to_text() const;
  // Takes any bytes: throws CheckpointError, with `path` in its text, unless all of it
  // is true to itself: checksum, types, sizes that multiply without overflow, pieces
  // that tile their tensors, lie inside their files and do not overlap.
  static Manifest parse(std::string_view text, const std::filesystem::path& path);
};

// Parts of the manifest by themselves. Reading throws CheckpointError with the path and
// the place in the file.
Json to_json(const FileEntry& file);
Json to_json(const TensorEntry& tensor);
FileEntry file_from_json(const Json& value, const std::filesystem::path& path, const std::string& place);
TensorEntry tensor_from_json(const Json& value, const std::filesystem::path& path, const std::string& place);

}  // namespace lockstep::checkpoint
