#include <lockstep/error.h>
#include <torch/torch.h>

#include "checkpoint/file_system.h"
#include "checkpoint/shard.h"
#include "checkpoint/store.h"
#include "interop/deepspeed/deepspeed_checkpoint.h"

namespace lockstep::interop {
namespace {

// What is in memory at once, unless one tensor is larger.
constexpr int64_t kShardBytes = int64_t{512} << 20;

using Tensors = std::vector<DeepSpeedCheckpoint::Tensor>;

// Where each shard ends.
std::vector<size_t> shard_ends(const Tensors& tensors) {
  std::vector<size_t> ends;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (bytes > 0 && bytes + tensors[i].bytes > kShardBytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  ends.push_back(tensors.size());
  return ends;
}

}  // namespace

std::filesystem::path save_checkpoint(const DeepSpeedCheckpoint& imported, const std::filesystem::path& to) {
  checkpoint::Snapshot snapshot;
  snapshot.step = imported.step;
  snapshot.world_size = imported.ranks;
  snapshot.metadata = imported.metadata;
  int64_t bytes = 0;
  for (const auto& tensor : imported.tensors) bytes += tensor.bytes;
  checkpoint::Store store(to);
  checkpoint::Draft draft = store.begin(snapshot.step, bytes);
  const std::vector<size_t> ends = shard_ends(imported.tensors);
  std::vector<checkpoint::ShardIndex> shards;
  size_t next = 0;
  for (const size_t end : ends) {
    std::vector<checkpoint::TensorPiece> pieces;
    for (; next < end; ++next) {
      const auto& tensor = imported.tensors[next];
      pieces.push_back(checkpoint::TensorPiece::whole(tensor.name, tensor.read()));
    }
    shards.push_back(checkpoint::write_shard(checkpoint::real_files(), draft.folder(),
                                             static_cast<int>(shards.size()), static_cast<int>(ends.size()),
                                             pieces));
  }
  return store.publish(std::move(draft), shards, snapshot).path;
}

}  // namespace lockstep::interop
