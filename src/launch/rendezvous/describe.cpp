#include "launch/rendezvous/describe.h"

#include <fmt/format.h>
#include <lockstep/exit_status.h>

#include <cstring>
#include <utility>

namespace lockstep::launcher {

bool is_preempted(const JobFailure& failure) {
  return failure.kind == JobFailure::Kind::kWorker && !failure.state.signaled &&
         failure.state.code == kExitPreempted;
}

std::string describe(const JobFailure& failure) {
  if (failure.kind == JobFailure::Kind::kNode) {
    return fmt::format("node {} ({}) is lost: {}", failure.node_rank, failure.host, failure.message);
  }
  return fmt::format("rank {} on {} ended with {}", failure.rank, failure.host, failure.state.to_string());
}

JobOutcome outcome_of(JobOutcome::Kind kind, std::string reason, int restart_count, int signal) {
  JobOutcome outcome;
  outcome.kind = kind;
  outcome.reason = std::move(reason);
  outcome.restart_count = restart_count;
  outcome.signal = signal;
  return outcome;
}

std::string describe_unknown_host(const RendezvousOptions& options, const std::string& here,
                                  const std::string& reason) {
  return fmt::format(
      "the job meets at host '{}' port {}, which {} does not know ({}): set {} to a name or an "
      "address of node 0 that every node knows",
      options.host, options.port, here, reason, options.host_option);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string count_nodes(int count) { return fmt::format("{} node{}", count, count == 1 ? "" : "s"); }

}  // namespace lockstep::launcher
