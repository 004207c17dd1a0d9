#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/process.h"
#include "launcher/slurm/sbatch_script.h"
#include "report/scaling.h"

namespace lockstep::cli::scaling {

// What to run.
struct Study {
  std::vector<int> nodes;  // empty: on this machine; otherwise each run is a Slurm job
  std::vector<int> ranks;  // of each node
  std::vector<int> cpus_per_rank;
  bool gpus = false;  // each rank has a GPU
  // Of the Slurm jobs: partition, account, time, other options.
  launcher::SbatchRequest job;
  std::vector<std::string> command;  // "{folder}" in it becomes the run's folder
  std::filesystem::path output;      // gets a folder for each run, and a file with its console output
  bool oversubscribe = false;        // also runs that want more CPUs than there are
};

// `cpus` in the order in which a study hands them out: one of each physical core before
// their second hardware threads, so that "2 CPUs" are two cores where there are two.
std::vector<int> spread_over_cores(const std::vector<int>& cpus, const std::string& sysfs = "/sys");

// What the runs on this machine share.
struct Machine {
  std::vector<int> cpus;  // in the order in which they are handed out
  int num_gpus = 0;       // that this process sees
};

// `lockstep run` of a row on its share of the machine: its CPUs, and as many of the first GPUs that
// `environment` shows as it has ranks. stdout and stderr go to `fd`.
base::ProcessOptions process_of(const Study& study, const report::ScalingRow& row, const Machine& machine,
                                base::Environment environment, int fd);

// Runs every combination, fewest CPUs first, one after the other: through `lockstep run` on its share of the
// machine alone, or as a Slurm job (style torchrun). A combination that needs more than the machine has is
// left out. `done` is called after each. Blocks. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the run that is
// under way and leave the others out; their number comes back in *stopped_by. ConfigError: the output folder
// cannot be made, or holds runs already.
std::vector<report::ScalingRow> run_study(const Study& study, const Machine& machine,
                                          const std::function<void(const report::ScalingRow&)>& done,
                                          std::optional<int>* stopped_by);

}  // namespace lockstep::cli::scaling
