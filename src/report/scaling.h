#pragma once

#include <lockstep/json.h>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/run.h"

namespace lockstep::report {

// One run of a study: the same training with so many ranks and CPUs.
struct ScalingRow {
  int ranks = 1;
  int cpus_per_rank = 1;
  std::filesystem::path folder;  // of the run
  // Why there is nothing to compare; empty: it went well.
  std::string failure;
  bool was_run = true;  // false: it was not tried, and `failure` says why

  double seconds = 0;        // from start to end of the program
  double samples_per_s = 0;  // median over the run, of all ranks
  std::map<std::string, double> final_metrics;
  // Against the row that went well with the fewest CPUs in all: how much faster, and how
  // much of what so many more CPUs could give. 0: there is none.
  double speed_up = 0;
  double efficiency = 0;

  int cpus() const { return ranks * cpus_per_rank; }
  bool went_well() const { return failure.empty(); }
  std::string label() const;  // "2 ranks, 1 CPU each"
};

struct Scaling {
  std::vector<std::string> command;
  std::string host;
  int cpus = 0;  // that the study may use
  std::vector<ScalingRow> rows;
};

// Fills in what a row's run folder tells, or the failure: no metrics.
void measure_row(ScalingRow& row);
// Fills in speed_up and efficiency of all rows.
void compare_rows(std::vector<ScalingRow>& rows);

// A table for a terminal, one line a row.
std::string scaling_table(const Scaling& scaling);
Json scaling_json(const Scaling& scaling);
// Speed against ranks, and speed-up against CPUs; none where no run went well.
std::vector<Chart> scaling_charts(const Scaling& scaling);
// Writes the page: the table, speed against ranks and CPUs, and the charts of the runs.
// ConfigError: it cannot be written.
void write_scaling_report(const Scaling& scaling, const std::filesystem::path& output);

}  // namespace lockstep::report
