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

#include "checkpoint/metric_kind.h"

namespace lockstep::checkpoint {

inline constexpr char kManifestName[] = "manifest.json";
// 1: all pieces are in the manifest. 2: the pieces are in index files. Both are read; 2 is written if
// the manifest would be too long.
inline constexpr int kFormatVersion = 2;

// The pieces grow with tensors times ranks. A manifest with many of them keeps the tensors and moves
// the pieces to index files beside it.
struct ManifestLimits {
  int64_t whole_pieces = 1 << 16;  // a manifest with more pieces has index files
  int64_t index_pieces = 1 << 16;  // of one index file; all pieces of a tensor are in the same file
  // Of the manifest and of each index file. Longer files are neither written nor read.
  int64_t max_bytes = 256LL << 20;
};

struct FileEntry {
  std::string name;  // in the folder of the manifest
  int64_t bytes = 0;
  // xxh3-128 of the safetensors header, with its length. The rest of the file is pieces, each with
  // its own checksum: every byte is covered once, and each piece can be written, read and verified
  // alone.
  std::string header_checksum;
};

// Consecutive elements of a tensor in one file.
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
  std::vector<Piece> pieces;  // in the order of their elements; they cover the tensor
  // The index file with the pieces, as an index of Manifest::indices; -1: the manifest has them.
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
  // Counts the saves of a folder. The checkpoint with the higher number is newer, even if a run
  // resumed from an earlier step.
  int64_t sequence = 0;
  int64_t step = 0;
  int64_t epoch = 0;
  int world_size = 1;
  std::optional<double> metric;
  MetricKind metric_kind;
  bool best = false;     // the best when it was saved, by the trainer's criterion
  std::string time;      // UTC, "2026-01-31T12:00:00Z"
  std::string lockstep;  // the version that wrote it
  std::string libtorch;
  std::vector<FileEntry> files;
  std::vector<IndexEntry> indices;
  std::map<std::string, TensorEntry> tensors;
  Json metadata = Json::object();

  int64_t total_bytes() const;
  int64_t piece_count() const;

  // Moves the pieces of all tensors to index files. Returns the texts of these files.
  std::vector<std::string> split_off_pieces(int64_t pieces_each);

  // JSON whose first member is the checksum of the text after it.
  std::string to_text() const;
  // Accepts any bytes. CheckpointError, with `path` in its text, unless the manifest is consistent:
  // checksum, types, sizes that multiply without overflow, pieces that cover their tensors, lie
  // inside their files and do not overlap.
  static Manifest parse(std::string_view text, const std::filesystem::path& path);

  // Reads the pieces of an index file. Accepts any bytes, as parse does; overlaps are found by
  // check_pieces.
  void read_index(size_t index, std::string_view text, const std::filesystem::path& path);
  // CheckpointError unless the loaded pieces cover their tensors, lie inside their files and do not
  // overlap.
  void check_pieces(const std::filesystem::path& path) const;
};

// One shard's part of the manifest. Rank 0 gathers those of all ranks, as JSON, and publishes them.
struct ShardIndex {
  FileEntry file;
  // name -> dtype, shape of the full tensor, and the pieces in this file; Piece::file is 0.
  std::map<std::string, TensorEntry> tensors;

  Json to_json() const;
  // CheckpointError: not what to_json() makes.
  static ShardIndex from_json(const Json& json);
};

}  // namespace lockstep::checkpoint
