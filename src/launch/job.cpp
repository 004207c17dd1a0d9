#include "launch/job.h"

#include <lockstep/exit_status.h>

#include <numeric>

namespace lockstep::launcher {
namespace {

int ranks_before(const std::vector<NodeInfo>& nodes, size_t end) {
  return std::accumulate(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(end), 0,
                         [](int sum, const NodeInfo& node) { return sum + node.local_world_size; });
}

}  // namespace

int Generation::world_size() const { return ranks_before(nodes, nodes.size()); }

int Generation::first_rank() const { return ranks_before(nodes, static_cast<size_t>(node_rank)); }

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
