#pragma once

#include <lockstep/rank_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// What one rank sees of its share of a node.
struct AllocationFacts {
  bool wants_gpu = false;
  int visible_gpus = 0;
  int affinity_cpus = 1;  // CPUs of this process's mask
  bool own_cpus = false;  // the mask is this rank's alone: has_own_cpus()
  // What the control group leaves all ranks of this node together; nullopt: no limit.
  std::optional<int64_t> memory_limit_bytes;
  // What a rank needs at least. LibTorch alone takes about half a GiB, a CUDA context
  // with NCCL two more on the host.
  int64_t memory_per_rank_bytes = int64_t{1} << 30;
};

// The facts of this process, which sees visible_gpus and whose node has so many ranks:
// GPUs are wanted where Slurm has given some.
AllocationFacts facts_of_process(const base::Environment& environment, int local_world_size,
                                 int visible_gpus);

// Compares the ranks with what the job was given, from the view of one rank: ranks
// against GPUs, CPUs a rank, memory a rank. One sentence a problem, each with the flag
// to change; empty: all fits. Pure. Not told here, because one rank cannot see it: two
// ranks with the same GPU UUID (check_distinct_devices). ConfigError: a Slurm variable
// is set and broken.
std::vector<std::string> check_allocation(const RankMap& map, const base::Environment& environment,
                                          const AllocationFacts& facts);

}  // namespace lockstep::cluster
