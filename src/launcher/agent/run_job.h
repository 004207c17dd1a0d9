#pragma once

#include "launcher/agent/run_options.h"

namespace lockstep::launcher {

// Runs this node's part of a job to its end: joins the other nodes, starts the workers, ends or
// restarts them together with all others, and reports a failure on standard error. Returns the
// exit status of the job, which is the same on every node. Blocks. REQUIRES: no other thread of
// this process accepts the signals of the options. SIGPIPE and SIGTERM are ignored afterwards.
int run_job(const RunOptions& options);

}  // namespace lockstep::launcher
