#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.h"

namespace lockstep::cluster {

using WallTime = std::chrono::system_clock::time_point;

// When Slurm, or the user's time limit, ends this job.
struct JobDeadline {
  WallTime time;
  std::string source;  // for messages: "SLURM_JOB_END_TIME", "the time limit given", "squeue"
};

// The end of the job, from the first of these that provides it: SLURM_JOB_END_TIME (Slurm
// 23.02 and later), `given` counted from `started`, or `ask`, which returns squeue's output
// and is called only inside a Slurm job. nullopt: no limit is known. Pure except for `ask`.
// ConfigError: the variable is set and broken.
std::optional<JobDeadline> job_deadline(const base::Environment& environment,
                                        std::optional<std::chrono::seconds> given, WallTime started,
                                        const std::function<std::optional<std::string>()>& ask);

// How long before its end a job should stop: `wanted`, but at most a tenth of the time that is left. With two
// minutes wanted, a job of one minute would otherwise stop at its start.
std::chrono::seconds stop_margin(std::chrono::seconds wanted, std::chrono::system_clock::duration left);

// The end time in what `squeue -h -o %e` printed under SLURM_TIME_FORMAT=%s: seconds
// since the epoch. nullopt: "N/A" or "Unknown" (no limit, not started), or any other text
// that is no time.
std::optional<WallTime> parse_end_time(std::string_view text);

// Asks squeue about the job of this environment. nullopt: there is no squeue (containers
// often have none), it fails, or it does not answer within ten seconds. Blocks: call it
// once, on one rank.
std::optional<std::string> ask_squeue_for_end(const base::Environment& environment);

}  // namespace lockstep::cluster
