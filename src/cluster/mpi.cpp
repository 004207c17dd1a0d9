// What mpirun and mpiexec tell their processes.

#include <fmt/format.h>

#include <array>

#include "cluster/evidence.h"
#include "cluster/meeting.h"

namespace lockstep::cluster {
namespace {

struct MpiNames {
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
  std::string_view local_world_size;

  Names all() const { return {rank, world_size, local_rank, local_world_size}; }
};

// In order of trust. OMPI_COMM_WORLD_NODE_RANK is missing on purpose: it is not the
// node's index. PMIx tells no sizes, so that the user has to.
constexpr std::array<MpiNames, 3> kFlavours{{
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}};

const MpiNames* find_flavour(const Variables& variables) {
  for (const MpiNames& names : kFlavours) {
    // WORLD_SIZE alone is not MPI's.
    const bool own_size = names.world_size != "WORLD_SIZE";
    if (variables.has(names.rank) || (own_size && variables.has(names.world_size))) return &names;
  }
  return nullptr;
}

// The same on all ranks of one mpirun and different between two; Hydra has none.
std::string job_identity(const Variables& variables) {
  for (const std::string_view name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    if (std::optional<std::string> value = variables.text(name)) return *value;
  }
  return "";
}

// Returns a warning where it had to assume something, else "".
std::string read_local_ranks(const Variables& variables, const MpiNames& names, RankMap& map) {
  const std::optional<int> local_rank = variables.rank(names.local_rank);
  const std::optional<int> local_world_size = variables.count(names.local_world_size);
  if (!local_rank && !local_world_size) return assume_local_ranks(map);
  map.local_rank = variables.require(local_rank, names.local_rank, names.all());
  map.local_world_size = variables.require(local_world_size, names.local_world_size, names.all());
  return "";
}

Rendezvous mpi_rendezvous(const Evidence& evidence, const MpiNames& names, const RankMap& map) {
  MeetingDefaults defaults;
  const bool one_node = evidence.variables.count(names.local_world_size) == map.world_size;
  if (one_node) defaults.address = "127.0.0.1";
  if (!map.job_id.empty()) defaults.port = derived_port("mpi/" + map.job_id);
  defaults.hint = "give it to all ranks (OpenMPI: -x NAME=value, MPICH: -genv NAME value)";
  Rendezvous meeting =
      choose_rendezvous(evidence.variables, evidence.init_method, map.world_size, defaults, names.all());
  set_own_secret(evidence.variables, fmt::format("mpi-{}-{}-{}", map.job_id, meeting.address, meeting.port),
                 meeting);
  return meeting;
}

}  // namespace

bool has_mpi_variables(const Variables& variables) { return find_flavour(variables) != nullptr; }

bool started_by_mpirun(const Variables& variables) {
  return variables.has_any(
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
}

bool repeats_mpi(const Variables& variables) {
  const MpiNames* names = find_flavour(variables);
  return names != nullptr && variables.rank("RANK") == variables.rank(names->rank) &&
         variables.count("WORLD_SIZE") == variables.count(names->world_size);
}

Placement place_in_mpi_world(const Evidence& evidence) {
  const Variables& variables = evidence.variables;
  const MpiNames& names = *find_flavour(variables);
  Placement placement;
  RankMap& map = placement.map;
  map.launcher = Launcher::kMpi;
  map.job_id = job_identity(variables);
  map.rank = variables.require(variables.rank(names.rank), names.rank, names.all());
  map.world_size = variables.require(variables.count(names.world_size), names.world_size, names.all());
  check_rank_in_world(map, variables, names.all());
  map.node_rank = -1;
  map.num_nodes = 0;
  map.rendezvous = mpi_rendezvous(evidence, names, map);
  std::string warning = read_local_ranks(variables, names, map);
  if (!warning.empty()) placement.warnings.push_back(std::move(warning));
  check_ranks(map, variables, names.all());
  check_nprocs(evidence, map, {names.rank, names.world_size});
  check_repeated_variables(map, variables, names.all());
  complete(map, evidence.host);
  return placement;
}

}  // namespace lockstep::cluster
