// Slurm's variables. A step's own variables are read before the job's, and the two
// are never mixed: inside a smaller step SLURM_JOB_NODELIST still names all nodes.

#include <fmt/format.h>

#include <numeric>

#include "base/number.h"
#include "cluster/evidence.h"
#include "cluster/meeting.h"
#include "cluster/node_list.h"

namespace lockstep::cluster {
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

// The shell that salloc opens on a node, the batch script and the external step are
// steps to Slurm, with numbers from here up.
constexpr int64_t kFirstReservedStep = 4294967290;

struct Identity {
  std::string job;
  int64_t step = 0;
};

// The task's place, with the names that errors show.
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
  const std::optional<int> told = variables.count(task.scope.num_nodes);
  if (told && static_cast<size_t>(*told) != num_nodes) {
    variables.fail(
        fmt::format("the number of hosts in {} is {}, not {}", task.scope.node_list, num_nodes, *told),
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

// "7.0" is step 0 of job 7. Steps of one job get neighbouring ports.
uint16_t port_of(const std::string& job_id) {
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
  // One node needs no name service.
  const std::string address = step.num_nodes == 1 ? "127.0.0.1" : step.nodes.front();
  Rendezvous meeting = choose_rendezvous(variables, evidence.init_method, world_size,
                                         {.address = address, .port = port_of(step.job_id), .hint = ""}, {});
  // Clusters that share a file system count their jobs alike.
  const std::string cluster = variables.text("SLURM_CLUSTER_NAME").value_or("cluster");
  set_own_secret(variables, fmt::format("slurm-{}-{}-{}", cluster, step.job_id, step.restart_count), meeting);
  return meeting;
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
  const bool told = evidence.init_method || variables.has_any({"MASTER_ADDR", "MASTER_PORT"});
  if (step.num_nodes > 1 || told) plan.rendezvous = step_rendezvous(evidence, step, nprocs);
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
  complete(step, evidence.host);
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
