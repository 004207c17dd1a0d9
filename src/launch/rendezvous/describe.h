#pragma once

#include <string>

#include "launch/job.h"
#include "launch/rendezvous/options.h"

namespace lockstep::launcher {

// A worker that was asked to stop, has saved, and says: start me again.
bool is_preempted(const JobFailure& failure);

// "rank 3 on node 1 (gpu07) ended with exit code 1", "node 1 (gpu07) is lost: ...".
std::string describe(const JobFailure& failure);

JobOutcome outcome_of(JobOutcome::Kind kind, std::string reason, int restart_count = 0, int signal = 0);

// For a launcher on the machine `here`, to whom the system says `reason` of the job's host.
std::string describe_unknown_host(const RendezvousOptions& options, const std::string& here,
                                  const std::string& reason);

std::string signal_name(int signal);  // "SIGTERM"
std::string count_nodes(int count);   // "1 node", "2 nodes"

}  // namespace lockstep::launcher
