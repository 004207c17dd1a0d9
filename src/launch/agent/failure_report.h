#pragma once

#include <string>

#include "launch/job.h"

namespace lockstep::launcher {

// The end of a job for a person: what failed first, where, how, and the last lines
// that it said. "" for success. Several lines, each ended; component: who speaks.
std::string format_outcome(const std::string& component, const JobOutcome& outcome);

}  // namespace lockstep::launcher
