#pragma once

#include <string>

#include "launch/job.h"

namespace lockstep::launcher {

// A worker that was asked to stop, has saved, and says: start me again.
bool is_preempted(const JobFailure& failure);

// "rank 3 on node 1 (gpu07) ended with exit code 1", "node 1 (gpu07) is lost: ...".
std::string describe(const JobFailure& failure);

std::string signal_name(int signal);  // "SIGTERM"
std::string count_nodes(int count);   // "1 node", "2 nodes"

}  // namespace lockstep::launcher
