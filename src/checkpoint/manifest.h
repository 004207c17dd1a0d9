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
// 1: all is in the manifest. 2: pieces are in index files. Both are read; 2 is written where a
// manifest would be too long.
inline constexpr int kFormatVersion = 2;

// A manifest that grows with tensors times ranks is divided: it keeps the tensors, and files
// beside it hold where their pieces are.
struct ManifestLimits {
  int64_t whole_pieces = 1 << 16;  // with more of them a manifest is divided
  int64_t index_pieces = 1 << 16;  // of one index file; all pieces of a tensor are in one
  // Of the manifest and of each index file; what is longer is neither written nor read.
  int64_t max_bytes = 256LL << 20;
};

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
  // The index file that holds the pieces, by its place in Manifest::indices; -1: none does.
  int index = -1;

  int64_t numel() const;
};

struct IndexEntry {
  std::string name;  // in the folder of the manifest
  int64_t bytes = 0;
  std::string checksum;  // xxh3-128 of all its bytes
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
  std::vector<IndexEntry> indices;
  std::map<std::string, TensorEntry> tensors;
  Json metadata = Json::object();

  int64_t total_bytes() const;
  int64_t piece_count() const;

  // Moves the pieces of all tensors out to index files. Returns their texts.
  std::vector<std::string> divide(int64_t pieces_each);

  // JSON whose first member is the checksum of the text behind it.
  std::string to_text() const;
  // Takes any bytes: throws CheckpointError, with `path` in its text, unless all of it
  // is true to itself: checksum, types, sizes that multiply without overflow, pieces
  // that tile their tensors, lie inside their files and do not overlap.
  static Manifest parse(std::string_view text, const std::filesystem::path& path);

  // Takes the pieces of the tensors that this index file is for. Any bytes, as parse, but that
  // overlaps are found by check_pieces.
  void take_index(size_t index, std::string_view text, const std::filesystem::path& path);
  // CheckpointError unless the pieces that are there tile their tensors, lie inside their files
  // and do not overlap.
  void check_pieces(const std::filesystem::path& path) const;
};

// Parts of the manifest by themselves. Reading throws CheckpointError with the path and
// the place in the file.
Json to_json(const FileEntry& file);
Json to_json(const TensorEntry& tensor);
FileEntry file_from_json(const Json& value, const std::filesystem::path& path, const std::string& place);
TensorEntry tensor_from_json(const Json& value, const std::filesystem::path& path, const std::string& place);

}  // namespace lockstep::checkpoint
