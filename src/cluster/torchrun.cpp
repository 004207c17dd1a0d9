// torchrun's variables, and the same ones set by hand or given as arguments.

#include "cluster/evidence.h"
#include "cluster/meeting.h"

namespace lockstep::cluster {
namespace {

const Names kNames{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"};

// What our own launcher gave its ranks; else a token that the user gave all of them.
void set_launcher_secret(const Variables& variables, Rendezvous& meeting) {
  const std::optional<int> key_fd = variables.number("LOCKSTEP_KEY_FD", 3, 1 << 30);
  const std::optional<std::string> key_name = variables.text("LOCKSTEP_KEY_NAME");
  if (key_fd) {
    meeting.secret = Rendezvous::Secret::kInherited;
    meeting.key_fd = *key_fd;
    meeting.key_pid = variables.number("LOCKSTEP_KEY_PID", 0, 1 << 30).value_or(0);
  } else if (key_name) {
    meeting.secret = Rendezvous::Secret::kKeyFile;
    meeting.key_name = *key_name;
  } else if (variables.has("LOCKSTEP_JOB_TOKEN")) {
    meeting.secret = Rendezvous::Secret::kToken;
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
  // torch's own test, so that C++ and Python ranks of one job agree who hosts.
  result.agent_hosts_store =
      !evidence.init_method && variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const std::optional<int> listen_fd = variables.number("LOCKSTEP_STORE_FD", 3, 1 << 30);
  if (map.rank == 0 && listen_fd && !result.agent_hosts_store) result.listen_fd = *listen_fd;
  if (!result.agent_hosts_store) set_launcher_secret(variables, result);
  return result;
}

// Returns a warning where it had to assume something, else "".
std::string read_local_ranks(const Variables& variables, RankMap& map) {
  const std::optional<int> local_rank = variables.rank("LOCAL_RANK");
  const std::optional<int> local_world_size = variables.count("LOCAL_WORLD_SIZE");
  if (local_rank && local_world_size) {
    map.local_rank = *local_rank;
    map.local_world_size = *local_world_size;
    return "";
  }
  if (local_world_size) variables.fail("LOCAL_RANK is missing", kNames);
  std::string warning = assume_local_ranks(map);
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
  if (map.job_id == "none") map.job_id.clear();  // torchrun's word for no --rdzv-id
  map.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
  map.generation = variables.number("LOCKSTEP_GENERATION", 0, 1 << 30).value_or(map.restart_count);
  map.rendezvous = torchrun_rendezvous(evidence, map);
  std::string warning = read_local_ranks(variables, map);
  if (!warning.empty()) placement.warnings.push_back(std::move(warning));
  read_node(variables, map);
  check_ranks(map, variables, kNames);
  check_nprocs(evidence, map, {"RANK", "WORLD_SIZE"});
  complete(map, evidence.host);
  return placement;
}

}  // namespace lockstep::cluster
