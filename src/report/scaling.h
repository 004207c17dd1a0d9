#pragma once

#include <lockstep/json.h>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "report/chart.h"
#include "report/run.h"

namespace lockstep::report {

// One run of a scaling study: the same training with this number of ranks and CPUs.
struct ScalingRow {
  int nodes = 1;  // the ranks are spread evenly over them
  int ranks = 1;  // of all nodes
  int cpus_per_rank = 1;
  std::filesystem::path folder;  // of the run
  // Why there is no result; empty: the run succeeded.
  std::string failure;
  bool was_run = true;        // false: the run was skipped, and `failure` says why
  bool one_gpu_each = false;  // each rank has a GPU

  double seconds = 0;        // from start to end of the program
  double samples_per_s = 0;  // of all ranks, median over the run
  std::map<std::string, double> final_metrics;
  // Relative to the base: the successful row with the fewest ranks among those with as many CPUs per rank.
  // The ratio of the speeds, and that ratio divided by the ratio of the ranks. 0: there is no base.
  double speed_up = 0;
  double efficiency = 0;
  // As Sigma2's page computes them: the ratio of the durations from start to end, to the one successful row
  // with the fewest ranks and CPUs whatever its settings, and that ratio divided by the number of ranks.
  double page_speed_up = 0;
  double page_efficiency = 0;

  int cpus() const { return ranks * cpus_per_rank; }
  bool succeeded() const { return failure.empty(); }
  std::string label() const;  // "2 nodes, 4 ranks, 1 CPU each"
};

struct Scaling {
  std::vector<std::string> command;
  std::string host;
  int cpus = 0;           // available to the study
  bool by_slurm = false;  // the runs are Slurm jobs, submitted from this host
  std::vector<ScalingRow> rows;
};

// Sets the results of a row from its run folder, or `failure` if there are no metrics.
void measure_row(ScalingRow& row);
// Sets speed_up and efficiency of all rows.
void compare_rows(std::vector<ScalingRow>& rows);

// A table for a terminal, one line per row.
std::string scaling_table(const Scaling& scaling);
Json scaling_json(const Scaling& scaling);
// Speed and speed-up over ranks, and each loss and accuracy over epochs with a line for each row; empty if no
// run succeeded. Reads the folders of the runs.
std::vector<Chart> scaling_charts(const Scaling& scaling);
// Writes the HTML page: the table, the charts of the study, and the charts of the runs.
// ConfigError: the file cannot be written.
void write_scaling_report(const Scaling& scaling, const std::filesystem::path& output);

}  // namespace lockstep::report
