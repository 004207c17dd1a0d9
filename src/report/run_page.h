#pragma once

#include <string>
#include <vector>

#include "report/run.h"

namespace lockstep::report {

// The page of one run, or of several side by side.
std::string run_page(std::vector<Run> runs);

}  // namespace lockstep::report
