#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/thinned_table.h"

namespace lockstep::report {

// What metrics.jsonl tells beyond metrics.csv.
struct StepTimes {
  std::vector<Point> times;  // (step, seconds since 1970), rising in both
  std::string model;         // the text "model"
};

// Looks at a few hundred places of the file, however large it is. A file that is not there
// or not ours tells nothing.
StepTimes sample_step_times(const std::filesystem::path& path);

}  // namespace lockstep::report
