#pragma once

#include <string>

#include "base/environment.h"

namespace lockstep::launcher {

// The environment without the variables of the job that this process may be part of:
// sbatch would pass them on, and srun in the new job take them for its own. Those that
// tell Slurm's commands where their cluster is stay. Both functions below do this.
base::Environment without_job(const base::Environment& environment);

// What sbatch says of a script without running it: when and where it would start.
// Throws ConfigError with sbatch's own words where it refuses the script, or where
// there is no sbatch.
std::string test_script(const std::string& script, const base::Environment& environment);

// Submits the script and returns the job's id. ConfigError as above.
std::string submit_script(const std::string& script, const base::Environment& environment);

// Copies the job's log to standard output until the job has ended, and returns its
// exit status; of an array all tasks' logs, "[3]:" before the lines of task 3, and the
// largest status. Blocks. A
// job that is queued again has not ended. ConfigError: slurmctld does not know the job
// any more.
int follow_job(const std::string& job_id, const base::Environment& environment);

}  // namespace lockstep::launcher
