#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/thinned_table.h"

namespace lockstep::report {

// Columns beyond this many are left out: what a report shows stays readable and small.
inline constexpr size_t kMaxColumns = 512;

// The part of a step: NAME of time_NAME_s, in milliseconds a step. It is a column beside
// time_NAME_s, which has the seconds since the row before.
std::string per_step_column(const std::string& name);
bool is_per_step_column(const std::string& column);

// Adds the rows of a file that the csv, or the jsonl, tracker has written, x is the step.
// Lines that are no rows are left out and said in `remarks`. False: there is no such file,
// or not one row in it.
bool read_metrics_csv(const std::filesystem::path& path, ThinnedTable& table,
                      std::vector<std::string>& remarks);
bool read_metrics_jsonl(const std::filesystem::path& path, ThinnedTable& table,
                        std::vector<std::string>& remarks);

}  // namespace lockstep::report
