#pragma once

#include <vector>

#include "report/chart.h"
#include "report/run.h"

namespace lockstep::report {

// Metrics that are in no chart of their own are left out beyond this many.
inline constexpr size_t kMaxOtherCharts = 24;
// GPUs of one run in a chart.
inline constexpr size_t kMaxGpuLines = 16;

// The charts of one run, or of several in the same charts: loss, accuracy and the other
// metrics of training and evaluation, learning rate, samples/s, parts of a step, GPUs, and
// what else was written. A chart without values is left out. `remarks` gets what is too
// much.
std::vector<Chart> charts_of(const std::vector<Run>& runs, std::vector<std::string>& remarks);

}  // namespace lockstep::report
