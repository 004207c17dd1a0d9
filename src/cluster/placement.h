#pragma once

#include <lockstep/rank_map.h>

#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// What the user asked for, by flags or in code. Each field left out is found in
// the environment.
struct PlacementRequest {
  std::optional<int> nprocs;  // ranks over all nodes
  std::optional<int> rank;    // needs world_size too, and the reverse
  std::optional<int> world_size;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<std::string> init_method;  // env://, tcp://host:port, file:///path
};

// The ranks that this process has to start, because the launcher started one
// process a node (or none at all) and more ranks are wanted.
struct SpawnPlan {
  int world_size = 1;
  int first_rank = 0;  // ranks first_rank .. first_rank + local_world_size - 1 are ours
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::vector<std::string> nodes;
  std::vector<int> ranks_per_node;
  std::string job_id;
  // kNone: all ranks are on this machine, the spawning process picks a free port.
  Rendezvous rendezvous;
};

// Exactly one of: this process is a rank (spawn is empty), or starts ranks. In the
// second case the map holds only the launcher, the host and the job's identity.
struct Placement {
  RankMap map;
  std::optional<SpawnPlan> spawn;
  // Sentences for the log: what had to be assumed, what the user may have forgotten.
  std::vector<std::string> warnings;
};

// Decides by, in this order: explicit arguments, torchrun-style variables, a Slurm
// step, MPI (OpenMPI, PMIx, PMI), else a single process; docs/cluster.md has the
// rules. Pure: reads nothing but its arguments. ConfigError names the variables and
// their values whenever they are broken or contradict each other; there is no
// fallback to a world of one.
Placement decide_placement(const PlacementRequest& request, const base::Environment& environment,
                           const std::string& host);

}  // namespace lockstep::cluster
