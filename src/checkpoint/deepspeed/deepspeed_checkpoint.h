#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/json.h>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct DeepSpeedImportOptions {
  std::string tag = {};        // which checkpoint of the folder; empty: the latest
  bool weights_alone = false;  // no optimizer and no loss scale
  bool float32 = false;        // the float32 masters instead of 16-bit weights
  std::string optimizer = {};  // "Adam" or "AdamW", if the files do not say which
};

// A checkpoint of DeepSpeed (stages 0 to 3, data parallel) under the names of our format. A tensor is
// gathered from the files of all ranks when it is read.
struct DeepSpeedCheckpoint {
  struct Tensor {
    std::string name;  // "model.0.weight", "lockstep/optimizer/0.weight/exp_avg"
    int64_t bytes = 0;
    std::function<at::Tensor()> read;  // contiguous, in host memory
  };
  std::filesystem::path folder;
  int64_t stage = 0;
  int ranks = 1;
  int64_t step = 0;
  std::vector<Tensor> tensors;
  Json metadata;                         // of the checkpoint to write
  std::vector<std::string> left_behind;  // content of the files that is not imported, by name
};

// Opens all files and reads the descriptions of the tensors. ConfigError names the file and the reason.
// No code of the files is executed.
DeepSpeedCheckpoint open_deepspeed_checkpoint(const std::filesystem::path& path,
                                              const DeepSpeedImportOptions& options = {});

// Writes it as the first checkpoint of the folder, in shards: at most the tensors of one shard are in
// memory. Returns the folder of the checkpoint. Throws the errors of Store and of reading.
std::filesystem::path save_checkpoint(const DeepSpeedCheckpoint& imported, const std::filesystem::path& to);

}  // namespace lockstep::checkpoint
