#include "launch/rendezvous/describe.h"

#include <fmt/format.h>
#include <lockstep/exit_status.h>

#include <cstring>

namespace lockstep::launcher {

bool is_preempted(const JobFailure& failure) {
  return failure.kind == JobFailure::Kind::kWorker && !failure.state.signaled &&
         failure.state.code == kExitPreempted;
}

std::string describe(const JobFailure& failure) {
  if (failure.kind == JobFailure::Kind::kNode) {
    return fmt::format("node {} ({}) is lost: {}", failure.node_rank, failure.host, failure.message);
  }
  return fmt::format("rank {} on node {} ({}) ended with {}", failure.rank, failure.node_rank, failure.host,
                     failure.state.to_string());
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string count_nodes(int count) { return fmt::format("{} node{}", count, count == 1 ? "" : "s"); }

}  // namespace lockstep::launcher
