#include "launch/rendezvous/agreement.h"

#include <fmt/format.h>

#include "cluster/topology.h"

namespace lockstep::launcher {
namespace {

std::string nodes_flag(int min, int max) {
  return min == max ? std::to_string(min) : fmt::format("{}:{}", min, max);
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{}", std::chrono::duration<double>(time).count());
}

}  // namespace

std::string difference_of(const wire::Join& join, const RendezvousOptions& options) {
  const auto differ = [&](const char* flag, const std::string& theirs, const std::string& ours) {
    return fmt::format("{} is {} on {} and {} on {}, which hosts the job: give all launchers the same", flag,
                       theirs, join.candidate.node.host, ours, cluster::host_name());
  };
  if (join.min_nodes != options.min_nodes || join.max_nodes != options.max_nodes) {
    return differ("--nnodes", nodes_flag(join.min_nodes, join.max_nodes),
                  nodes_flag(options.min_nodes, options.max_nodes));
  }
  if (join.max_restarts != options.max_restarts) {
    return differ("--max-restarts", std::to_string(join.max_restarts), std::to_string(options.max_restarts));
  }
  if (join.stall_timeout != options.stall_timeout) {
    return differ("--stall-timeout", seconds_text(join.stall_timeout), seconds_text(options.stall_timeout));
  }
  return "";
}

}  // namespace lockstep::launcher
