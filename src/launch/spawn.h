#pragma once

#include "cluster/placement.h"
#include "launch/supervisor.h"

namespace lockstep::launcher {

// Starts this node's ranks of the plan as copies of the running program with the
// same arguments, watches them, and returns when all have ended. Says on standard
// error which rank failed first and how. Where all ranks are on this machine the
// store's port is a free one whose socket rank 0 inherits, so it cannot be taken.
//
// Returns the exit status of supervise(). No rank survives this process, also when it
// is killed.
int spawn_ranks(cluster::SpawnPlan plan, const SupervisorOptions& options = {});

}  // namespace lockstep::launcher
