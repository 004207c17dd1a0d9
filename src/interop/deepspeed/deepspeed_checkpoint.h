#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/json.h>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::interop {

struct DeepSpeedImportOptions {
  std::string tag = {};        // which checkpoint of the folder; empty: the latest
  bool weights_alone = false;  // no optimizer and no loss scale
  bool float32 = false;        // 16-bit weights as the float32 ones behind them
  std::string optimizer = {};  // "Adam" or "AdamW", where the files do not say which
};

// A checkpoint of DeepSpeed's (stages 0 to 3, data parallel), put together: what is in it
// under the names of our format. Tensors are read from the files when they are asked for,
// from the files that have parts of them.
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
  std::vector<std::string> left_behind;  // what is in the files and not in here, by name
};

// Opens all files and reads what they say of the tensors. ConfigError names the file and
// what is wrong with it. No code of the files is executed.
DeepSpeedCheckpoint open_deepspeed_checkpoint(const std::filesystem::path& path,
                                              const DeepSpeedImportOptions& options = {});

// Writes it as the first checkpoint of the folder, in shards, so that not more than a
// shard's tensors are in memory at once. Returns the checkpoint's own folder. Errors are
// those of checkpoint::Store and of reading.
std::filesystem::path save_checkpoint(const DeepSpeedCheckpoint& imported, const std::filesystem::path& to);

}  // namespace lockstep::interop
