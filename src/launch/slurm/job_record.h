#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

// A job, or one task of an array, as slurmctld remembers it.
struct JobRecord {
  std::string task;      // of an array: "3", or several that have not begun: "4-9"
  std::string state;     // "RUNNING", "COMPLETED", ...
  int exit_code = 0;     // of the batch script
  int exit_signal = 0;   // that ended it, or 0
  std::string log_path;  // standard output; "" where it is not known

  // Whether it has begun, so that log_path is its own.
  bool has_log() const;
  // Whether it will not run any more.
  bool ended() const;
  // The script's exit code or 128 + signal; 1 for a job that was cancelled, lost its
  // node or ran out of time before its script could say anything. REQUIRES: ended().
  int status() const;
};

// The records in what `scontrol show job` printed: one of a job, one a task of an
// array. Values end with their line or at a space, so that a name or path with spaces
// is read whole.
std::vector<JobRecord> parse_job_records(std::string_view text);

}  // namespace lockstep::launcher
