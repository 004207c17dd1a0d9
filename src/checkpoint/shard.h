#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/snapshot.h"

namespace lockstep::checkpoint {

struct ShardOptions {
  // fsync before the call returns. Without it a power loss may lose the file.
  bool sync = true;
};

// "shard-00003-of-00008.safetensors".
std::string shard_name(int shard, int shard_count);

// The size of the file that write_shard would write.
int64_t shard_bytes(const std::vector<TensorPiece>& pieces);

// Writes one safetensors file into `folder`. A full tensor has its name and shape there; a part of
// a tensor has the name "name[first:end]" and one dimension. Tensors on a device are copied to the
// host one by one; those in host memory are written without a copy.
//
// ConfigError: the format cannot hold a tensor, which the text names; nothing was written then.
// CheckpointError: writing fails.
ShardIndex write_shard(FileSystem& files, const std::filesystem::path& folder, int shard, int shard_count,
                       const std::vector<TensorPiece>& pieces, const ShardOptions& options = {});

}  // namespace lockstep::checkpoint
