#pragma once

#include <string>

#include "base/environment.h"

namespace lockstep::launcher {

// What sbatch says of a script without running it: when and where it would start.
// Throws ConfigError with sbatch's own words where it refuses the script, or where
// there is no sbatch.
std::string test_script(const std::string& script, const base::Environment& environment);

// Submits the script and returns the job's id. ConfigError as above.
std::string submit_script(const std::string& script, const base::Environment& environment);

// Copies the job's log to standard output until the job has ended, and returns its
// exit status (the largest of an array's tasks, whose logs are only named). Blocks. A
// job that is queued again has not ended. ConfigError: slurmctld does not know the job
// any more.
int follow_job(const std::string& job_id, const base::Environment& environment);

}  // namespace lockstep::launcher
