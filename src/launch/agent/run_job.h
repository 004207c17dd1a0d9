#pragma once

#include "launch/agent/run_options.h"

namespace lockstep::launcher {

// Runs this node's part of a job to its end: meets the other nodes, starts the
// workers, ends or restarts them together with all others, and says on standard error
// how it ended where that was not well. Returns the exit status of the job, which is
// the same on every node. Blocks; REQUIRES that no other thread of this process accepts
// the signals of the options. SIGPIPE and SIGTERM are ignored afterwards.
int run_job(const RunOptions& options);

}  // namespace lockstep::launcher
