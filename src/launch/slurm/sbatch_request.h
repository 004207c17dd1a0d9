#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/slurm/slurm_version.h"

namespace lockstep::launcher {

// Who starts the ranks inside the allocation, which is the same for all three.
enum class SlurmStyle {
  kTorchrun,  // one task a node runs `lockstep run`, which starts and restarts the ranks
  kSrun,      // one task a rank, started by srun
  kSpawn,     // one task a node runs the program, which starts the rest by lockstep::launch
};

// A job as the user describes it; text fields are Slurm's own words, "" is "not given".
struct SbatchRequest {
  std::vector<std::string> command;  // the program and its arguments, at least the first
  SlurmStyle style = SlurmStyle::kTorchrun;

  int nodes = 1;
  std::string gpus_per_node;           // "4" or "a100:4"
  std::optional<int> ntasks_per_node;  // ranks a node; left out: one a GPU, else one
  std::optional<int> cpus_per_task;    // of each rank
  std::string mem;                     // of each node
  std::string time;
  std::string partition;
  std::string account;
  std::string array;
  std::string job_name;  // left out: the program's name
  std::string output;    // left out: NAME-JOB.out
  std::string signal;    // "USR1@120": sent to the ranks, this long before the end
  bool requeue = false;

  std::string container;             // an image for apptainer or singularity
  std::vector<std::string> modules;  // loaded in this order

  std::optional<SlurmVersion> version;  // nullopt: text that is right for all of them
  std::string launcher = "lockstep";    // the command `lockstep` on the nodes

  // Ranks on each node. REQUIRES: check_request() passed.
  int ranks_per_node() const;
};

// ConfigError names the first flag whose value Slurm would refuse or misread, the
// value, and what is allowed.
void check_request(const SbatchRequest& request);

}  // namespace lockstep::launcher
