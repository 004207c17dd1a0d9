#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::launcher {

// A Slurm step whose tasks are launchers, one per node: what they need to find each other.
struct SlurmStep {
  int num_nodes = 1;
  int node_rank = 0;
  std::string address;  // of node 0: MASTER_ADDR, else the first node of the step
  uint16_t port = 0;    // MASTER_PORT, else derived from job and step
  std::string id;       // "7.0"
};

// nullopt: this process is no task of a step. ConfigError: the variables contradict each other,
// or there are several tasks on a node.
std::optional<SlurmStep> read_launcher_step(const base::Environment& environment, const std::string& host);

// The problems of local_world_size ranks, started here by a launcher, with what Slurm gave this
// node, each with the flag to change. Empty: all fits, or this is no Slurm job.
std::vector<std::string> check_slurm_share(const base::Environment& environment, int local_world_size);

}  // namespace lockstep::launcher
