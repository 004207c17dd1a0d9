#include "launch/agent/slurm_step.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include "cluster/placement.h"

namespace lockstep::launcher {

std::optional<SlurmStep> read_slurm_step(const base::Environment& environment, const std::string& host) {
  // As if this launcher were the rank: then it is one of as many as there are nodes.
  const RankMap map = cluster::decide_placement({}, environment, host).map;
  if (map.launcher != Launcher::kSlurm) return std::nullopt;
  if (map.world_size != map.num_nodes) {
    throw ConfigError("run",
                      fmt::format("lockstep run wants one task a node, the step has {} tasks on {} nodes: "
                                  "add --ntasks-per-node=1 to srun, or let srun start the program itself",
                                  map.world_size, map.num_nodes));
  }
  return SlurmStep{map.num_nodes, map.rank, map.rendezvous.address, map.rendezvous.port, map.job_id};
}

}  // namespace lockstep::launcher
