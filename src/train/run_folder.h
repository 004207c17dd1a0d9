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

// How a run ended.
struct RunEnd {
  int64_t epochs = 0;
  int64_t steps = 0;
  int64_t max_iter = 0;  // of the run's configuration
  int64_t max_steps = 0;
  double max_time_s = 0;
  int64_t checkpoint_step = 0;  // of its last checkpoint; -1: none
  std::string stopped;          // why it ended before max_iter; empty: it did not
  std::map<std::string, double> metrics;
};

// Which start of a job this is, as Slurm and launchers count the starts.
struct Attempt {
  int64_t requeues = 0;    // by Slurm
  std::string launcher;    // the process that restarts the ranks
  int64_t generation = 0;  // how often it has restarted them
};

// The folder of one run: config.log_folder, or a folder under config.root_folder. Its name is
// <program>_<YYYYmmddTHHMMSS>_<pid in hex>, or <program>_<id of the job> for a job that its launcher or
// Slurm may start again. Such a job finds its folder again if the run in it is unfinished and has the
// same configuration, or if the job was started again. Every other run (the second training of a
// program, a second program in the job) gets a name with "-2" and so on. Rank 0 creates the folder and
// holds its lock; all ranks know its path.
//
// run.json in the folder records which training of which start of the job is in it, and how the run
// ended.
class RunFolder {
 public:
  // Collective. Does not change the content of the folder. ConfigError on all ranks: rank 0 cannot
  // create the folder, or another run has it.
  RunFolder(World& world, const TrainConfig& config,
            const base::Environment& environment = base::Environment::of_process());

  // The end of the run in the folder before this process; nullopt: none is recorded.
  const std::optional<RunEnd>& end() const { return end_; }

  // Writes config.json, config_defaults.json (the values that no flag, variable or file sets), ranks.json
  // (host and device of every rank) and run.json with `end`, if given. Call it when the run in the folder is
  // known to be this one. Collective. ConfigError on all ranks: rank 0 cannot write.
  void describe(const World& world, const TrainConfig& config, const std::optional<RunEnd>& end) const;

  // Rank 0 writes run.json with this end. A failure is a warning, because the training is done.
  void record_end(const World& world, const RunEnd& end) const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

 private:
  std::string record(const World& world, const std::optional<RunEnd>& end) const;

  const int fit_;  // number of this training in the program, from 1
  const Attempt attempt_;
  const std::string deepspeed_;                 // content of config.deepspeed_config
  std::optional<checkpoint::FolderLock> lock_;  // on rank 0
  std::filesystem::path path_;
  std::optional<RunEnd> end_;
};

}  // namespace lockstep::train
