#pragma once

#include <string>

#include "base/environment.h"
#include "launch/agent/run_options.h"
#include "launch/job.h"

namespace lockstep::launcher {

// The whole environment of one worker: `ours`, plus who it is in torchrun's words.
// error_file: where it may leave a WorkerError.
base::Environment worker_environment(const base::Environment& ours, const RunOptions& options,
                                     const Generation& generation, int local_rank,
                                     const std::string& error_file);

// The prefix of a worker's lines: ${role_name}, ${rank}, ${local_rank} and ${hostname} replaced.
std::string line_prefix(const RunOptions& options, const Generation& generation, int local_rank);

}  // namespace lockstep::launcher
