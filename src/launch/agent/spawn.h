#pragma once

#include "cluster/placement.h"
#include "launch/agent/run_options.h"

namespace lockstep::launcher {

// This node's ranks of the plan as a job of `lockstep run`: copies of the running program
// with the same arguments, which write to our own standard streams, meet where the plan
// says and are not started again. On one node they are watched for hangs, and where the
// plan names no place the store's port is a free one whose socket rank 0 inherits, so it
// cannot be taken.
RunOptions options_of(const cluster::SpawnPlan& plan);

// Runs them by run_job(): the same exit status, report, signals and promises. Afterwards
// signals have their effect again, but where the status is not 0 this process ignores
// SIGTERM: it is meant to end with that status.
int spawn_ranks(const cluster::SpawnPlan& plan);

}  // namespace lockstep::launcher
