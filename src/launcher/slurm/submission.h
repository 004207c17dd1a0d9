#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace lockstep::launcher {

// A job, or one task of an array, as slurmctld records it.
struct JobRecord {
  std::string task;      // of an array: "3", or several that have not started: "4-9"
  std::string state;     // "RUNNING", "COMPLETED", ...
  int exit_code = 0;     // of the batch script
  int exit_signal = 0;   // that ended it, or 0
  std::string log_path;  // standard output; "" if unknown
  double seconds = 0;    // that it ran, to whole seconds

  // Whether it has started, so that log_path is its own.
  bool has_log() const;
  // Whether it has ended for good.
  bool ended() const;
  // The script's exit code or 128 + signal; 1 for a job that was cancelled, lost its node or ran
  // out of time before its script could set a code. REQUIRES: ended().
  int status() const;
};

// The records in the output of `scontrol show job`: one for a job, one per task of an array. A
// name or path with spaces is read whole.
std::vector<JobRecord> parse_job_records(std::string_view text);

// The environment without the variables of the job that this process may be part of: sbatch would
// pass them on, and srun in the new job would use them as its own. Variables by which Slurm's
// commands find their cluster stay. Both functions below do this.
base::Environment without_job(const base::Environment& environment);

// sbatch's answer for a script without running it: when and where it would start. Throws
// ConfigError with sbatch's text if it rejects the script, or if there is no sbatch.
std::string test_script(const std::string& script, const base::Environment& environment);

// Submits the script and returns the job's id. ConfigError as above.
std::string submit_script(const std::string& script, const base::Environment& environment);

// Copies the job's log to standard output until the job has ended, and returns its exit status;
// for an array the logs of all tasks, with "[3]:" before the lines of task 3, and the largest
// status. Blocks. A job that is requeued has not ended. ConfigError: slurmctld does not know the
// job any more.
int follow_job(const std::string& job_id, const base::Environment& environment);

struct JobResult {
  int status = 0;      // as follow_job() returns it
  double seconds = 0;  // that the job ran
};
// Waits for the job without showing its log. If `stop` returns true, which is asked a few times a second, the
// job is cancelled. ConfigError as above.
JobResult wait_for_job(const std::string& job_id, const base::Environment& environment,
                       const std::function<bool()>& stop);

}  // namespace lockstep::launcher
