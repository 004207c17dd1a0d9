#pragma once

#include <lockstep/train_config.h>

#include <filesystem>
#include <optional>

#include "checkpoint/folder_lock.h"

namespace lockstep {
class World;
}

namespace lockstep::train {

// The folder of one run: config.log_folder, or a folder under config.root_folder. A run
// of its own gets <program>_<YYYYmmddTHHMMSS>_<pid in hex>; a job that its launcher or
// Slurm may start again gets <program>_<id of the job>, which it then finds again. The
// second training of a program has "-2" after its name, and so on. Rank 0 makes it and
// holds its lock; all ranks know its path.
class RunFolder {
 public:
  // Every rank calls it. ConfigError on all ranks when rank 0 cannot make it, or another
  // run has it. What is in it is not touched.
  RunFolder(World& world, const TrainConfig& config);

  // Writes config.json, config_defaults.json (the values where nothing sets them) and
  // ranks.json (host and device of every rank). Every rank calls it, when it is sure that the
  // run in the folder is this one. ConfigError on all ranks.
  void describe(const World& world, const TrainConfig& config) const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

 private:
  std::optional<checkpoint::FolderLock> lock_;  // on rank 0
  std::filesystem::path path_;
};

}  // namespace lockstep::train
