#include "cluster/placement.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <utility>

#include "cluster/evidence.h"
#include "cluster/init_method.h"
#include "cluster/meeting.h"

namespace lockstep::cluster {
namespace {

std::string shown(const std::optional<int>& value) { return value ? std::to_string(*value) : "unset"; }

void set_arguments(const PlacementRequest& request, const InitMethod& method, Evidence& evidence) {
  if ((method.rank && request.rank) || (method.world_size && request.world_size)) {
    throw ConfigError("cluster",
                      fmt::format("rank and world_size are given both in init_method and beside it: "
                                  "init_method='{}', rank={}, world_size={}",
                                  *request.init_method, shown(request.rank), shown(request.world_size)));
  }
  const std::optional<int> rank = request.rank ? request.rank : method.rank;
  const std::optional<int> world_size = request.world_size ? request.world_size : method.world_size;
  if (rank.has_value() != world_size.has_value()) {
    throw ConfigError("cluster",
                      fmt::format("rank and world_size must be given together: rank={}, world_size={}",
                                  shown(rank), shown(world_size)));
  }
  evidence.explicit_rank = rank.has_value();
  const std::pair<const char*, std::pair<const char*, std::optional<int>>> arguments[] = {
      {"RANK", {"argument rank", rank}},
      {"WORLD_SIZE", {"argument world_size", world_size}},
      {"LOCAL_RANK", {"argument local_rank", request.local_rank}},
      {"LOCAL_WORLD_SIZE", {"argument local_world_size", request.local_world_size}}};
  for (const auto& [name, argument] : arguments) {
    if (argument.second) evidence.variables.set_argument(name, argument.first, *argument.second);
  }
}

Evidence gather(const PlacementRequest& request, const base::Environment& environment,
                const std::string& host) {
  if (request.nprocs && (*request.nprocs < 1 || *request.nprocs > kMaxRanks)) {
    throw ConfigError("cluster",
                      fmt::format("nprocs must be from 1 to {}: nprocs={}", kMaxRanks, *request.nprocs));
  }
  Evidence evidence{Variables(environment), request.nprocs, std::nullopt, false, host};
  const InitMethod method = request.init_method ? parse_init_method(*request.init_method) : InitMethod{};
  evidence.init_method = method.rendezvous;
  set_arguments(request, method, evidence);
  return evidence;
}

bool repeats_step(const Variables& variables, const RankMap& step) {
  return variables.rank("RANK") == step.rank && variables.count("WORLD_SIZE") == step.world_size;
}

SpawnPlan spawn_here(const Evidence& evidence) {
  SpawnPlan plan;
  plan.world_size = *evidence.nprocs;
  plan.local_world_size = plan.world_size;
  plan.nodes = {evidence.host};
  plan.ranks_per_node = {plan.world_size};
  if (evidence.init_method || evidence.variables.has_any({"MASTER_ADDR", "MASTER_PORT"})) {
    plan.rendezvous = choose_rendezvous(
        evidence.variables, evidence.init_method, plan.world_size,
        {.address = "127.0.0.1", .port = std::nullopt, .hint = "set it, or unset MASTER_ADDR for a free one"},
        {});
  }
  return plan;
}

Placement place_single(const Evidence& evidence) {
  const Variables& variables = evidence.variables;
  const Names broken{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
  if (variables.has_any(broken)) {
    variables.fail("RANK is missing beside other variables of a launcher, set it or unset them", broken);
  }
  if (evidence.init_method && !evidence.nprocs) {
    throw ConfigError("cluster",
                      fmt::format("init_method names a place to meet but nothing tells this process's rank, "
                                  "give rank and world_size: init_method='{}'",
                                  evidence.init_method->to_string()));
  }
  Placement placement;
  if (evidence.nprocs.value_or(1) > 1) {
    placement.spawn = spawn_here(evidence);
    placement.map.host = evidence.host;
  } else {
    complete(placement.map, evidence.host);
  }
  std::string warning = slurm_warning(evidence);
  if (!warning.empty()) placement.warnings.push_back(std::move(warning));
  return placement;
}

}  // namespace

Placement decide_placement(const PlacementRequest& request, const base::Environment& environment,
                           const std::string& host) {
  const Evidence evidence = gather(request, environment, host);
  const Variables& variables = evidence.variables;
  const bool has_rank = variables.has("RANK");
  // Complete rank variables come from the innermost launcher. Without
  // LOCAL_WORLD_SIZE a script may only have repeated what srun or mpirun said, as in
  // RANK=$SLURM_PROCID, and those know more.
  if (has_rank && variables.has("LOCAL_WORLD_SIZE")) return place_by_rank_variables(evidence);
  if (!started_by_mpirun(variables)) {
    std::optional<RankMap> step = read_slurm_step(variables);
    if (step && (!has_rank || repeats_step(variables, *step)))
      return place_in_slurm_step(evidence, *std::move(step));
  }
  const bool from_mpi = has_mpi_variables(variables) && (!has_rank || repeats_mpi(variables));
  if (from_mpi) return place_in_mpi_world(evidence);
  if (has_rank) return place_by_rank_variables(evidence);
  return place_single(evidence);
}

}  // namespace lockstep::cluster
