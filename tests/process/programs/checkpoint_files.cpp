// Checkpoints for tests/peers/test_checkpoint_files.py.
//
//   checkpoint_files copy FILE FOLDER   every tensor of a safetensors file, saved again
//   checkpoint_files make FOLDER        tensors of our own, over two shards

#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace lockstep::checkpoint {
namespace {

void copy(const char* file_name, const char* folder) {
  const SafetensorsFile file(file_name);
  Snapshot snapshot{.step = 1};
  for (const std::string& name : file.names())
    snapshot.pieces.push_back(TensorPiece::whole(name, file.read(name)));
  Store(folder).save(snapshot);
}

void make(const char* folder) {
  const at::Tensor numbers = at::arange(12, at::kFloat).view({3, 4});
  const at::Tensor flat = at::arange(10, at::kLong);
  const std::vector<TensorPiece> first = {TensorPiece::whole("float", numbers),
                                          TensorPiece::whole("half", numbers.to(at::kHalf)),
                                          TensorPiece::whole("transposed", numbers.t()),
                                          TensorPiece::whole("scalar", at::scalar_tensor(2.5, at::kDouble)),
                                          TensorPiece::whole("empty", at::empty({0, 3})),
                                          TensorPiece::part("flat", flat.narrow(0, 0, 6), {2, 5}, 0)};
  const std::vector<TensorPiece> second = {TensorPiece::whole("mask", numbers > 5),
                                           TensorPiece::part("flat", flat.narrow(0, 6, 4), {2, 5}, 6)};
  Store store(folder);
  Draft draft = store.begin(1, 0);
  const std::vector<ShardIndex> shards = {write_shard(real_files(), draft.folder(), 0, 2, first),
                                          write_shard(real_files(), draft.folder(), 1, 2, second)};
  store.publish(std::move(draft), shards, {.step = 1, .world_size = 2});
}

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "copy" && argc == 4) {
      copy(argv[2], argv[3]);
    } else if (what == "make" && argc == 3) {
      make(argv[2]);
    } else {
      std::fprintf(stderr, "usage: checkpoint_files copy FILE FOLDER | make FOLDER\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::checkpoint

int main(int argc, char** argv) { return lockstep::checkpoint::run(argc, argv); }
