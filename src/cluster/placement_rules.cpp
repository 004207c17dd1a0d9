#include "cluster/placement_rules.h"

#include <fmt/format.h>

#include <array>
#include <numeric>

#include "base/number.h"
#include "cluster/slurm_notation.h"

namespace lockstep::cluster {

// --- parts that several rules share ---

namespace {

// If nprocs is given, it must be the launcher's world size.
void check_nprocs(const Evidence& evidence, const RankMap& map, const Names& names) {
  if (!evidence.nprocs || *evidence.nprocs == map.world_size) return;
  evidence.variables.fail(fmt::format("nprocs={} contradicts {}, which started {} ranks", *evidence.nprocs,
                                      to_string(map.launcher), map.world_size),
                          names);
}

// Sets local rank and size when no variable gives them: all ranks are on this machine if the rendezvous is a
// loopback address; else by GPUS_PER_NODE, of which Princeton's page computes the local rank, one rank for
// each GPU, if the ranks fill nodes of that many; else one rank per node is assumed. Returns a warning about
// the assumption, or "".
std::string assume_local_ranks(const Variables& variables, RankMap& map) {
  const bool here = map.world_size == 1 ||
                    (map.rendezvous.kind == Rendezvous::Kind::kTcp && is_loopback(map.rendezvous.address));
  const std::optional<int> gpus = variables.count("GPUS_PER_NODE");
  if (!here && gpus && map.world_size % *gpus == 0) {
    map.local_rank = map.rank % *gpus;
    map.local_world_size = *gpus;
    return "";
  }
  map.local_rank = here ? map.rank : 0;
  map.local_world_size = here ? map.world_size : 1;
  if (here) return "";
  return "the number of ranks on this machine is unknown, so 1 is assumed: set LOCAL_RANK and "
         "LOCAL_WORLD_SIZE";
}

// The secret of ranks that a foreign launcher started: the token that the user gave all of
// them, or one that rank 0 writes to a file of this name.
void set_foreign_secret(const Variables& variables, const std::string& key_name, Rendezvous& rendezvous) {
  if (rendezvous.kind != Rendezvous::Kind::kTcp) return;
  if (variables.text("LOCKSTEP_JOB_TOKEN")) {
    rendezvous.secret = Rendezvous::Secret::kToken;
  } else {
    rendezvous.secret = Rendezvous::Secret::kKeyFile;
    rendezvous.key_name = key_name;
  }
}

}  // namespace

void fill_derived_fields(RankMap& map, const std::string& host) {
  map.host = host;
  if (map.local_world_size != map.world_size) return;
  map.node_rank = 0;
  map.num_nodes = 1;
  if (map.nodes.empty()) map.nodes = {host};
  map.ranks_per_node = {map.world_size};
}

uint16_t derived_port(std::string_view identity, uint64_t offset) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a, 64 bits
  for (const char c : identity) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ull;
  }
  const uint64_t slot = (hash % kNumDerivedPorts + offset % kNumDerivedPorts) % kNumDerivedPorts;
  return static_cast<uint16_t>(kFirstDerivedPort + slot);
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.substr(0, 4) == "127.";
}

Rendezvous choose_rendezvous(const Variables& variables, const std::optional<Rendezvous>& init_method,
                             int world_size, const RendezvousDefaults& defaults, const Names& names) {
  if (init_method) return world_size == 1 ? Rendezvous{} : *init_method;
  // Both are read before the world size is checked: a broken value is an error in a world
  // of one too.
  const std::optional<std::string> address = variables.text("MASTER_ADDR");
  const std::optional<uint16_t> port = variables.port("MASTER_PORT");
  if (world_size == 1) return {};

  Rendezvous result;
  result.kind = Rendezvous::Kind::kTcp;
  result.address = address.value_or(defaults.address);
  result.port = port ? *port : defaults.port.value_or(0);
  if (!result.address.empty() && result.port != 0) return result;
  const char* missing = !result.address.empty() ? "MASTER_PORT is missing"
                        : result.port != 0      ? "MASTER_ADDR is missing"
                                                : "MASTER_ADDR and MASTER_PORT are missing";
  Names shown = names;
  shown.insert(shown.end(), {"MASTER_ADDR", "MASTER_PORT"});
  variables.fail(fmt::format("the rendezvous is incomplete, {}; {}", missing, defaults.hint), shown);
}

// --- torchrun's variables, also set by hand or given as arguments ---

namespace {

const Names kNames{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"};

// The secret that `lockstep run` gave its ranks, else the token that the user gave all ranks.
void set_launcher_secret(const Variables& variables, Rendezvous& rendezvous) {
  const std::optional<int> key_fd = variables.number("LOCKSTEP_KEY_FD", 3, 1 << 30);
  const std::optional<std::string> key_name = variables.text("LOCKSTEP_KEY_NAME");
  if (key_fd) {
    rendezvous.secret = Rendezvous::Secret::kInherited;
    rendezvous.key_fd = *key_fd;
    rendezvous.key_pid = variables.number("LOCKSTEP_KEY_PID", 0, 1 << 30).value_or(0);
  } else if (key_name) {
    rendezvous.secret = Rendezvous::Secret::kKeyFile;
    rendezvous.key_name = *key_name;
  } else if (variables.has("LOCKSTEP_JOB_TOKEN")) {
    rendezvous.secret = Rendezvous::Secret::kToken;
  }
}

Rendezvous torchrun_rendezvous(const Evidence& evidence, const RankMap& map) {
  const Variables& variables = evidence.variables;
  Rendezvous result =
      choose_rendezvous(variables, evidence.init_method, map.world_size,
                        {.address = "",
                         .port = std::nullopt,
                         .hint = "set both to the address and a free port of rank 0's machine"},
                        {"RANK", "WORLD_SIZE"});
  if (result.kind != Rendezvous::Kind::kTcp) return result;
  // The comparison is torch's, so that C++ and Python ranks of one job agree on who hosts.
  result.agent_hosts_store =
      !evidence.init_method && variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const std::optional<int> listen_fd = variables.number("LOCKSTEP_STORE_FD", 3, 1 << 30);
  if (map.rank == 0 && listen_fd && !result.agent_hosts_store) result.listen_fd = *listen_fd;
  if (!result.agent_hosts_store) set_launcher_secret(variables, result);
  return result;
}

// Returns a warning about an assumption, or "".
std::string read_local_ranks(const Variables& variables, RankMap& map) {
  const std::optional<int> local_rank = variables.rank("LOCAL_RANK");
  const std::optional<int> local_world_size = variables.count("LOCAL_WORLD_SIZE");
  if (local_rank && local_world_size) {
    map.local_rank = *local_rank;
    map.local_world_size = *local_world_size;
    return "";
  }
  if (local_world_size) variables.fail("LOCAL_RANK is missing", kNames);
  std::string warning = assume_local_ranks(variables, map);
  if (local_rank && *local_rank != map.local_rank) variables.fail("LOCAL_WORLD_SIZE is missing", kNames);
  return warning;
}

void read_node(const Variables& variables, RankMap& map) {
  const std::optional<int> node_rank = variables.rank("GROUP_RANK");
  const std::optional<int> num_nodes = variables.count("GROUP_WORLD_SIZE");
  if (node_rank && !num_nodes) variables.fail("GROUP_WORLD_SIZE is missing", kNames);
  if (num_nodes && !node_rank) variables.fail("GROUP_RANK is missing", kNames);
  map.node_rank = node_rank.value_or(-1);
  map.num_nodes = num_nodes.value_or(0);
}

Launcher launcher_of(const Evidence& evidence) {
  if (evidence.explicit_rank) return Launcher::kExplicit;
  const bool ours = evidence.variables.text("LOCKSTEP_LAUNCHER") == "lockstep";
  return ours ? Launcher::kLockstep : Launcher::kTorchrun;
}

}  // namespace

Placement place_by_rank_variables(const Evidence& evidence) {
  const Variables& variables = evidence.variables;
  Placement placement;
  RankMap& map = placement.map;
  map.launcher = launcher_of(evidence);
  map.rank = variables.require(variables.rank("RANK"), "RANK", kNames);
  map.world_size = variables.require(variables.count("WORLD_SIZE"), "WORLD_SIZE", kNames);
  check_rank_in_world(map, variables, kNames);
  map.job_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
  if (map.job_id == "none") map.job_id.clear();  // torchrun's value without --rdzv-id
  map.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
  map.generation = variables.number("LOCKSTEP_GENERATION", 0, 1 << 30).value_or(map.restart_count);
  map.rendezvous = torchrun_rendezvous(evidence, map);
  std::string warning = read_local_ranks(variables, map);
  if (!warning.empty()) placement.warnings.push_back(std::move(warning));
  read_node(variables, map);
  check_ranks(map, variables, kNames);
  check_nprocs(evidence, map, {"RANK", "WORLD_SIZE"});
  fill_derived_fields(map, evidence.host);
  return placement;
}

// --- the variables of mpirun and mpiexec ---

namespace {

struct MpiNames {
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
  std::string_view local_world_size;

  Names all() const { return {rank, world_size, local_rank, local_world_size}; }
};

// The most reliable first. OMPI_COMM_WORLD_NODE_RANK is not used: it is not the node's
// index. PMIx provides no sizes, so the user has to set them.
constexpr std::array<MpiNames, 3> kFlavours{{
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}};

const MpiNames* find_flavour(const Variables& variables) {
  for (const MpiNames& names : kFlavours) {
    // WORLD_SIZE alone does not come from MPI.
    const bool own_size = names.world_size != "WORLD_SIZE";
    if (variables.has(names.rank) || (own_size && variables.has(names.world_size))) return &names;
  }
  return nullptr;
}

// The same on all ranks of one mpirun and different between two mpiruns; Hydra sets none.
std::string job_identity(const Variables& variables) {
  for (const std::string_view name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    if (std::optional<std::string> value = variables.text(name)) return *value;
  }
  return "";
}

// Returns a warning about an assumption, or "".
std::string read_mpi_local_ranks(const Variables& variables, const MpiNames& names, RankMap& map) {
  const std::optional<int> local_rank = variables.rank(names.local_rank);
  const std::optional<int> local_world_size = variables.count(names.local_world_size);
  if (!local_rank && !local_world_size) return assume_local_ranks(variables, map);
  map.local_rank = variables.require(local_rank, names.local_rank, names.all());
  map.local_world_size = variables.require(local_world_size, names.local_world_size, names.all());
  return "";
}

Rendezvous mpi_rendezvous(const Evidence& evidence, const MpiNames& names, const RankMap& map) {
  RendezvousDefaults defaults;
  const bool one_node = evidence.variables.count(names.local_world_size) == map.world_size;
  if (one_node) defaults.address = "127.0.0.1";
  if (!map.job_id.empty()) defaults.port = derived_port("mpi/" + map.job_id);
  defaults.hint = "give it to all ranks (OpenMPI: -x NAME=value, MPICH: -genv NAME value)";
  Rendezvous rendezvous =
      choose_rendezvous(evidence.variables, evidence.init_method, map.world_size, defaults, names.all());
  set_foreign_secret(evidence.variables,
                     fmt::format("mpi-{}-{}-{}", map.job_id, rendezvous.address, rendezvous.port),
                     rendezvous);
  return rendezvous;
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
  std::string warning = read_mpi_local_ranks(variables, names, map);
  if (!warning.empty()) placement.warnings.push_back(std::move(warning));
  check_ranks(map, variables, names.all());
  check_nprocs(evidence, map, {names.rank, names.world_size});
  check_repeated_variables(map, variables, names.all());
  fill_derived_fields(map, evidence.host);
  return placement;
}

// --- Slurm's variables ---
//
// A step's own variables are read before the job's, and the two are never mixed: inside a
// smaller step SLURM_JOB_NODELIST still names all nodes of the job.

namespace {

struct ScopeNames {
  std::string_view tasks;
  std::string_view num_nodes;
  std::string_view node_list;
  std::string_view tasks_per_node;

  Names all() const { return {tasks, num_nodes, node_list, tasks_per_node}; }
};

constexpr ScopeNames kStepScope{"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
                                "SLURM_STEP_TASKS_PER_NODE"};
constexpr ScopeNames kJobScope{"SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST",
                               "SLURM_TASKS_PER_NODE"};

// Slurm also counts the shell that salloc opens on a node, the batch script and the external
// step as steps, with numbers from here up.
constexpr int64_t kFirstReservedStep = 4294967290;

struct Identity {
  std::string job;
  int64_t step = 0;
};

// A task's identity, and the variables that errors show.
struct Task {
  Identity identity;
  ScopeNames scope;
  Names names;
};

std::optional<Identity> read_identity(const Variables& variables) {
  const std::string_view step_name = variables.has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID";
  const std::string_view job_name = variables.has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID";
  const std::optional<std::string> step_text = variables.text(step_name);
  if (!step_text) {
    // The batch shell has SLURM_PROCID=0 and no step.
    const bool in_step =
        variables.has_any(kStepScope.all()) || variables.number("SLURM_PROCID", 0, kMaxRanks) > 0;
    if (in_step)
      variables.fail("SLURM_STEP_ID is missing", {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"});
    return std::nullopt;
  }
  const std::optional<int64_t> step = base::parse_integer(*step_text);
  if (!step || *step < 0) variables.fail(fmt::format("{} must be a whole number", step_name), {step_name});
  if (*step >= kFirstReservedStep) return std::nullopt;
  return Identity{variables.require(variables.text(job_name), "SLURM_JOB_ID", {"SLURM_JOB_ID", step_name}),
                  *step};
}

void check_node_counts(const RankMap& map, const Task& task, const Variables& variables) {
  const size_t num_nodes = map.nodes.size();
  const std::optional<int> expected = variables.count(task.scope.num_nodes);
  if (expected && static_cast<size_t>(*expected) != num_nodes) {
    variables.fail(
        fmt::format("the number of hosts in {} is {}, not {}", task.scope.node_list, num_nodes, *expected),
        task.names);
  }
  if (map.ranks_per_node.size() != num_nodes) {
    variables.fail(fmt::format("{} and {} are of different lengths, {} and {}", task.scope.node_list,
                               task.scope.tasks_per_node, num_nodes, map.ranks_per_node.size()),
                   task.names);
  }
  const int64_t sum = std::accumulate(map.ranks_per_node.begin(), map.ranks_per_node.end(), int64_t{0});
  if (sum != map.world_size) {
    variables.fail(
        fmt::format("{} adds up to {} tasks, not {}", task.scope.tasks_per_node, sum, map.world_size),
        task.names);
  }
}

// SLURM_GTIDS lists the ranks of this node, SLURMD_NODENAME is its name.
void check_own_place(const RankMap& map, const Task& task, const Variables& variables) {
  Names names = task.names;
  if (const std::optional<std::string> ids = variables.text("SLURM_GTIDS")) {
    names.push_back("SLURM_GTIDS");
    std::vector<std::string> ranks = expand_node_list(*ids, "SLURM_GTIDS");
    if (ranks.size() != static_cast<size_t>(map.local_world_size) ||
        ranks[static_cast<size_t>(map.local_rank)] != std::to_string(map.rank)) {
      variables.fail("SLURM_GTIDS contradicts the task's place", names);
    }
  }
  const std::optional<std::string> node_name = variables.text("SLURMD_NODENAME");
  const std::string& expected = map.nodes[static_cast<size_t>(map.node_rank)];
  if (node_name && *node_name != expected) {
    names.push_back("SLURMD_NODENAME");
    variables.fail(
        fmt::format("node {} of {} is {}, not {}", map.node_rank, task.scope.node_list, expected, *node_name),
        names);
  }
}

RankMap read_task(const Variables& variables, const Task& task) {
  const auto require = [&](auto value, std::string_view name) {
    return variables.require(value, name, task.names);
  };
  RankMap map;
  map.launcher = Launcher::kSlurm;
  map.job_id = fmt::format("{}.{}", task.identity.job, task.identity.step);
  map.restart_count = variables.number("SLURM_RESTART_COUNT", 0, 1 << 30).value_or(0);
  map.generation = map.restart_count;
  map.rank = require(variables.rank("SLURM_PROCID"), "SLURM_PROCID");
  map.world_size = require(variables.count(task.scope.tasks), task.scope.tasks);
  check_rank_in_world(map, variables, task.names);
  map.nodes = expand_node_list(require(variables.text(task.scope.node_list), task.scope.node_list),
                               task.scope.node_list);
  map.ranks_per_node =
      expand_counts(require(variables.text(task.scope.tasks_per_node), task.scope.tasks_per_node),
                    task.scope.tasks_per_node);
  check_node_counts(map, task, variables);
  map.num_nodes = static_cast<int>(map.nodes.size());
  map.node_rank = require(variables.rank("SLURM_NODEID"), "SLURM_NODEID");
  if (map.node_rank >= map.num_nodes)
    variables.fail("the node's rank must be below the number of nodes", task.names);
  map.local_rank = require(variables.rank("SLURM_LOCALID"), "SLURM_LOCALID");
  map.local_world_size = map.ranks_per_node[static_cast<size_t>(map.node_rank)];
  check_ranks(map, variables, task.names);
  check_own_place(map, task, variables);
  return map;
}

// "7.0" is step 0 of job 7. Steps of one job get adjacent ports.
uint16_t port_of_step(const std::string& job_id) {
  const size_t dot = job_id.rfind('.');
  return derived_port("slurm/" + job_id.substr(0, dot),
                      static_cast<uint64_t>(*base::parse_integer(std::string_view(job_id).substr(dot + 1))));
}

Rendezvous step_rendezvous(const Evidence& evidence, const RankMap& step, int world_size) {
  const Variables& variables = evidence.variables;
  const bool first_task = step.node_rank == 0 && step.local_rank == 0;
  if (world_size > 1 && !evidence.init_method && !variables.has("MASTER_ADDR") &&
      (step.rank == 0) != first_task) {
    variables.fail("rank 0 is not the first task of the first node, set MASTER_ADDR to its host",
                   {"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_DISTRIBUTION", "MASTER_ADDR"});
  }
  // A job of one node works without name resolution.
  const std::string address = step.num_nodes == 1 ? "127.0.0.1" : step.nodes.front();
  Rendezvous rendezvous =
      choose_rendezvous(variables, evidence.init_method, world_size,
                        {.address = address, .port = port_of_step(step.job_id), .hint = ""}, {});
  // Two clusters that share a file system may have jobs with the same id.
  const std::string cluster = variables.text("SLURM_CLUSTER_NAME").value_or("cluster");
  set_foreign_secret(variables, fmt::format("slurm-{}-{}-{}", cluster, step.job_id, step.restart_count),
                     rendezvous);
  return rendezvous;
}

Placement spawn_on_each_node(const Evidence& evidence, const RankMap& step) {
  const Variables& variables = evidence.variables;
  const int nprocs = *evidence.nprocs;
  const Names names{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"};
  if (nprocs % step.num_nodes != 0) {
    variables.fail(
        fmt::format("nprocs={} ranks cannot be shared equally by {} nodes", nprocs, step.num_nodes), names);
  }
  SpawnPlan plan;
  plan.world_size = nprocs;
  plan.num_nodes = step.num_nodes;
  plan.node_rank = step.node_rank;
  plan.local_world_size = nprocs / step.num_nodes;
  plan.first_rank = step.node_rank * plan.local_world_size;
  plan.nodes = step.nodes;
  plan.ranks_per_node.assign(step.nodes.size(), plan.local_world_size);
  plan.job_id = step.job_id;
  const bool given = evidence.init_method || variables.has_any({"MASTER_ADDR", "MASTER_PORT"});
  if (step.num_nodes > 1 || given) plan.rendezvous = step_rendezvous(evidence, step, nprocs);
  const std::optional<int> world_size = variables.count("WORLD_SIZE");
  if (world_size && *world_size != nprocs) {
    variables.fail(fmt::format("WORLD_SIZE contradicts nprocs={}", nprocs), {"WORLD_SIZE"});
  }

  Placement placement;
  placement.map.launcher = Launcher::kSlurm;
  placement.map.job_id = step.job_id;
  placement.map.host = evidence.host;
  placement.spawn = std::move(plan);
  return placement;
}

}  // namespace

std::optional<RankMap> read_slurm_step(const Variables& variables) {
  const std::optional<Identity> identity = read_identity(variables);
  if (!identity) return std::nullopt;
  const ScopeNames& scope = variables.has_any(kStepScope.all()) ? kStepScope : kJobScope;
  Names names{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"};
  for (const std::string_view name : scope.all()) names.push_back(name);
  return read_task(variables, Task{*identity, scope, names});
}

Placement place_in_slurm_step(const Evidence& evidence, RankMap step) {
  const bool one_task_a_node = step.world_size == step.num_nodes;
  if (evidence.nprocs && *evidence.nprocs > step.world_size && one_task_a_node) {
    return spawn_on_each_node(evidence, step);
  }
  const Names names{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"};
  check_nprocs(evidence, step, names);
  check_repeated_variables(step, evidence.variables, names);
  step.rendezvous = step_rendezvous(evidence, step, step.world_size);
  fill_derived_fields(step, evidence.host);
  return {.map = std::move(step), .spawn = std::nullopt, .warnings = {}};
}

std::string slurm_warning(const Evidence& evidence) {
  const Variables& variables = evidence.variables;
  if (!variables.has("SLURM_JOB_ID")) return "";
  const int tasks = variables.count("SLURM_NTASKS").value_or(1);
  const int num_nodes = variables.count("SLURM_JOB_NUM_NODES").value_or(1);
  const bool idle = evidence.nprocs ? num_nodes > 1 : tasks > 1 || num_nodes > 1;
  if (!idle) return "";
  return fmt::format(
      "this process was not started by srun and uses one machine of the allocation, start it with srun to "
      "use all: {}",
      variables.show({"SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES"}));
}

}  // namespace lockstep::cluster
