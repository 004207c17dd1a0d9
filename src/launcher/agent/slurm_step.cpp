#include "launcher/agent/slurm_step.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include "cluster/allocation_check.h"
#include "cluster/devices.h"
#include "cluster/placement.h"
#include "cluster/variables.h"

namespace lockstep::launcher {

std::optional<SlurmStep> read_launcher_step(const base::Environment& environment, const std::string& host) {
  // Places this launcher as if it were a rank: with one task per node there are as many ranks as
  // nodes.
  const RankMap map = cluster::decide_placement({}, environment, host).map;
  if (map.launcher != Launcher::kSlurm) return std::nullopt;
  if (map.world_size != map.num_nodes) {
    throw ConfigError("run",
                      fmt::format("lockstep run wants one task a node, the step has {} tasks on {} nodes: "
                                  "add --ntasks-per-node=1 to srun, or let srun start the program itself",
                                  map.world_size, map.num_nodes));
  }
  return SlurmStep{.num_nodes = map.num_nodes,
                   .node_rank = map.rank,
                   .address = map.rendezvous.address,
                   .port = map.rendezvous.port,
                   .id = map.job_id};
}

std::vector<std::string> check_slurm_share(const base::Environment& environment, int local_world_size) {
  if (!environment.has("SLURM_JOB_ID")) return {};
  RankMap map;
  map.launcher = Launcher::kLockstep;
  map.local_world_size = local_world_size;
  // By Slurm's variables: the driver also shows GPUs of other jobs.
  const int given = cluster::Variables(environment).number("SLURM_GPUS_ON_NODE", 0, 1024).value_or(0);
  return cluster::check_allocation(
      map, environment,
      cluster::facts_of_process(environment, local_world_size,
                                cluster::count_listed_gpus(environment).value_or(given)));
}

}  // namespace lockstep::launcher
