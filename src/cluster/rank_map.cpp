#include <fmt/format.h>
#include <lockstep/rank_map.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr size_t kNodesShown = 8;

std::string nodes_text(const RankMap& map) {
  std::string result;
  const size_t shown = std::min(map.nodes.size(), kNodesShown);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) result += ", ";
    result += map.nodes[i];
    if (i < map.ranks_per_node.size()) result += fmt::format(" ({})", map.ranks_per_node[i]);
  }
  if (shown < map.nodes.size()) result += fmt::format(" and {} more", map.nodes.size() - shown);
  return result;
}

}  // namespace

const char* to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::kExplicit: return "explicit";
    case Launcher::kLockstep: return "lockstep";
    case Launcher::kTorchrun: return "torchrun";
    case Launcher::kSlurm: return "slurm";
    case Launcher::kMpi: return "mpi";
    case Launcher::kSingle: return "single";
  }
  return "unknown";
}

std::string Rendezvous::to_string() const {
  switch (kind) {
    case Kind::kNone: return "none";
    case Kind::kTcp:
      // An IPv6 address needs brackets.
      return address.find(':') == std::string::npos ? fmt::format("tcp://{}:{}", address, port)
                                                    : fmt::format("tcp://[{}]:{}", address, port);
    case Kind::kFile: return "file://" + path;
  }
  return "unknown";
}

std::string RankMap::to_string() const {
  std::string result = fmt::format("launcher    {}", lockstep::to_string(launcher));
  if (!job_id.empty()) result += fmt::format(", job {}", job_id);
  if (restart_count > 0) result += fmt::format(", restart {}", restart_count);
  result += fmt::format("\nrank        {} of {} on {}", rank, world_size, host);
  result += fmt::format("\nlocal rank  {} of {}", local_rank, local_world_size);
  result +=
      num_nodes > 0 ? fmt::format("\nnode        {} of {}", node_rank, num_nodes) : "\nnode        unknown";
  if (!nodes.empty()) result += fmt::format("\nnodes       {}", nodes_text(*this));
  result += fmt::format("\nrendezvous  {}{}\n", rendezvous.to_string(),
                        rendezvous.agent_hosts_store ? ", hosted by the launcher" : "");
  return result;
}

}  // namespace lockstep
