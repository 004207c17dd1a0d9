#include "launch/job.h"

#include <lockstep/exit_status.h>

#include <numeric>

namespace lockstep::launcher {
namespace {

// Of the first `end` nodes, those of this role; nullptr: of any.
int count_ranks(const std::vector<NodeInfo>& nodes, size_t end, const std::string* role) {
  return std::accumulate(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(end), 0,
                         [role](int sum, const NodeInfo& node) {
                           return role == nullptr || node.role == *role ? sum + node.local_world_size : sum;
                         });
}

}  // namespace

int Generation::world_size() const { return count_ranks(nodes, nodes.size(), nullptr); }

int Generation::first_rank() const { return count_ranks(nodes, static_cast<size_t>(node_rank), nullptr); }

int Generation::role_world_size() const { return count_ranks(nodes, nodes.size(), &nodes[node_rank].role); }

int Generation::role_first_rank() const {
  return count_ranks(nodes, static_cast<size_t>(node_rank), &nodes[node_rank].role);
}

int JobOutcome::status() const {
  switch (kind) {
    case Kind::kSuccess: return kExitSuccess;
    case Kind::kWorkerFailed: return failure ? failure->state.status() : kExitFailure;
    case Kind::kNodeLost: return kExitNodeLost;
    case Kind::kStopped: return 128 + signal;
    case Kind::kPreempted: return kExitPreempted;
    case Kind::kRendezvousFailed: return kExitRendezvous;
  }
  return kExitInternal;
}

}  // namespace lockstep::launcher
