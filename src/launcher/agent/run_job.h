#pragma once

#include "cluster/placement.h"
#include "launcher/agent/run_options.h"

namespace lockstep::launcher {

// Runs this node's part of a job to its end: joins the other nodes, starts the workers, ends or
// restarts them together with all others, and reports a failure on standard error. Returns the
// exit status of the job, which is the same on every node. Blocks. REQUIRES: no other thread of
// this process accepts the signals of the options. SIGPIPE and SIGTERM are ignored afterwards.
int run_job(const RunOptions& options);

// This node's ranks of the plan as a job of `lockstep run`: copies of the running program with
// the same arguments, which inherit our standard streams, use the plan's rendezvous and are not
// restarted. On one node stalls are detected, and without a rendezvous in the plan rank 0
// inherits the listening socket of its store, so that no other process can take the port.
RunOptions spawn_options(const cluster::SpawnPlan& plan);

// Runs them by run_job(), with its exit status, report and signals. Afterwards signals have their
// effect again, but if the status is not 0 this process ignores SIGTERM: it is expected to end
// with that status.
int spawn_ranks(const cluster::SpawnPlan& plan);

}  // namespace lockstep::launcher
