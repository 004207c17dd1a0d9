#pragma once

#include <lockstep/rank_map.h>

#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// What the user asked for, by flags or in code. The environment provides each field that is
// left out.
struct PlacementRequest {
  std::optional<int> nprocs;  // ranks over all nodes
  std::optional<int> rank;    // needs world_size too, and the reverse
  std::optional<int> world_size;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<std::string> init_method;  // env://, tcp://host:port, file:///path
};

// The ranks that this process has to start, because the launcher started one process per
// node (or none) and the user wants more ranks.
struct SpawnPlan {
  int world_size = 1;
  int first_rank = 0;  // this process starts ranks first_rank .. first_rank + local_world_size - 1
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::vector<std::string> nodes;
  std::vector<int> ranks_per_node;
  std::string job_id;
  // kNone: all ranks are on this machine, the spawning process picks a free port.
  Rendezvous rendezvous;
};

// Either this process is a rank (spawn is empty), or it starts ranks (spawn is set). In the
// second case the map holds only the launcher, the host and the job id.
struct Placement {
  RankMap map;
  std::optional<SpawnPlan> spawn;
  // Sentences for the log: what was assumed, what the user may have forgotten.
  std::vector<std::string> warnings;
};

// Decides by the first of these that applies: explicit arguments, torchrun's variables, a
// Slurm step, MPI (OpenMPI, PMIx, PMI), a single process; docs/cluster.md has the rules.
// Pure: reads nothing but its arguments. ConfigError names the variables and their values
// if they are broken or contradict each other; there is no fallback to a world of one.
Placement decide_placement(const PlacementRequest& request, const base::Environment& environment,
                           const std::string& host);

}  // namespace lockstep::cluster
