#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/snapshot.h"

namespace lockstep::checkpoint {

// What the manifest says of one shard: rank 0 gathers those of all ranks, as JSON, and
// publishes them.
struct ShardIndex {
  FileEntry file;
  // name -> dtype, whole shape and the pieces in this file; Piece::file is 0.
  std::map<std::string, TensorEntry> tensors;

  Json to_json() const;
  static ShardIndex from_json(const Json& json);
};

struct ShardOptions {
  // fsync before the call returns. Without it a power loss may take the file.
  bool sync = true;
};

// "shard-00003-of-00008.safetensors".
std::string shard_name(int shard, int shard_count);

// Bytes of the file that write_shard would make.
int64_t shard_bytes(const std::vector<TensorPiece>& pieces);

// Writes one safetensors file into `folder`. A whole tensor is under its name and shape
// there, a part under "name[first:end]" with one dimension. Tensors on a device are
// copied to the host one by one, and those in a file read; those in host memory are written from
// where they lie.
//
// Throws ConfigError for a tensor that the format cannot hold, by name, before anything
// is written; CheckpointError when writing fails.
ShardIndex write_shard(FileSystem& files, const std::filesystem::path& folder, int shard, int shard_count,
                       const std::vector<TensorPiece>& pieces, const ShardOptions& options = {});

}  // namespace lockstep::checkpoint
