#pragma once

#include <lockstep/rank_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// What one rank knows about its share of a node.
struct AllocationFacts {
  bool wants_gpu = false;
  int visible_gpus = 0;
  int affinity_cpus = 1;  // CPUs of this process's mask
  bool own_cpus = false;  // no other rank uses the mask: has_own_cpus()
  // What the control group allows all ranks of this node together; nullopt: no limit.
  std::optional<int64_t> memory_limit_bytes;
  // The least that a rank needs. LibTorch alone takes about 0.5 GiB of host memory, a CUDA
  // context with NCCL 2 GiB more.
  int64_t memory_per_rank_bytes = int64_t{1} << 30;
};

// The facts of this process, which sees visible_gpus GPUs and whose node has
// local_world_size ranks. wants_gpu is set if Slurm gave the job GPUs on this node.
AllocationFacts facts_of_process(const base::Environment& environment, int local_world_size,
                                 int visible_gpus);

// Compares the ranks with the allocation, from the view of one rank: ranks with GPUs, CPUs
// per rank, memory per rank. Returns one sentence per problem, each with the flag to change;
// empty: all fits. Pure. Two ranks with the same GPU UUID are not found here, because one
// rank cannot see that (check_distinct_devices). ConfigError: a Slurm variable is set and
// broken.
std::vector<std::string> check_allocation(const RankMap& map, const base::Environment& environment,
                                          const AllocationFacts& facts);

}  // namespace lockstep::cluster
