#pragma once

#include <lockstep/config.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/environment.h"
#include "checkpoint/file_system.h"

namespace lockstep {
class World;
}

namespace lockstep::train {

// How a run came to its end.
struct RunEnd {
  int64_t epochs = 0;
  int64_t steps = 0;
  int64_t max_iter = 0;         // that the run was asked for
  int64_t checkpoint_step = 0;  // of the checkpoint that it left last; -1: none
  std::string stopped;          // why before max_iter; empty: it did all of them
  std::map<std::string, double> metrics;
};

// Which start of a job this is. Slurm and launchers count the starts.
struct Attempt {
  int64_t requeues = 0;    // by Slurm
  std::string launcher;    // the process that starts the ranks again
  int64_t generation = 0;  // how often that one has done it
};

// The folder of one run: config.log_folder, or a folder under config.root_folder. A run
// of its own gets <program>_<YYYYmmddTHHMMSS>_<pid in hex>; a job that its launcher or
// Slurm may start again gets <program>_<id of the job>. A job of the latter kind finds the folder
// again when its run is unfinished and has the same configuration, or when the job was
// started again. All else (the second training of a program, a second program in the job)
// has "-2" after its name, and so on. Rank 0 makes the folder and holds its lock; all ranks
// know its path.
//
// run.json in the folder says which training of which start of the job is in it, and how the
// run ended.
class RunFolder {
 public:
  // Every rank calls it. ConfigError on all ranks when rank 0 cannot make the folder, or another
  // run has it. What is in it is not touched.
  RunFolder(World& world, const TrainConfig& config,
            const base::Environment& environment = base::Environment::of_process());

  // The end of the run in the folder, as it was before this process; nullopt: it has none.
  const std::optional<RunEnd>& end() const { return end_; }

  // Writes config.json, config_defaults.json (the values where nothing sets them), ranks.json
  // (host and device of every rank) and run.json, with `end` in it where there is one. Every
  // rank calls it, when it is sure that the run in the folder is this one. ConfigError on all
  // ranks.
  void describe(const World& world, const TrainConfig& config, const std::optional<RunEnd>& end) const;

  // Rank 0 writes run.json with this end. A failure is a warning: the training is done.
  void record_end(const World& world, const RunEnd& end) const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

 private:
  std::string record(const World& world, const std::optional<RunEnd>& end) const;

  const int fit_;  // which training of the program this is, from 1
  const Attempt attempt_;
  const std::string deepspeed_;                 // what config.deepspeed_config holds
  std::optional<checkpoint::FolderLock> lock_;  // on rank 0
  std::filesystem::path path_;
  std::optional<RunEnd> end_;
};

}  // namespace lockstep::train
