#pragma once

#include <lockstep/json.h>

#include <filesystem>
#include <string>
#include <vector>

#include "report/run_files.h"
#include "report/thinned_table.h"

namespace lockstep::report {

struct RankPlace {
  int64_t rank = 0;
  int64_t local_rank = 0;
  std::string host;
  std::string device;
};

// The content of a run's folder. Missing files leave their fields empty; `remarks` names them.
struct Run {
  std::filesystem::path folder;
  std::string name;  // of the folder
  // Options by name; a hyperparameter is an option "hyperparams.lr".
  Json config = Json::object();
  Json defaults = Json::object();  // of config; may lack keys
  std::vector<RankPlace> ranks;
  std::string backend;
  ThinnedTable metrics;      // x: the step
  std::vector<Point> times;  // (step, seconds since 1970), rising in both; a sample
  std::vector<GpuLog> gpus;  // one log per node
  std::string model;         // its layers as text
  std::vector<std::string> remarks;
};

// Reads a run's folder: metrics.csv (otherwise metrics.jsonl), config.json and its defaults,
// ranks.json, the GPU logs. Damaged and foreign files are skipped. Time is proportional to the
// size of the files, memory is bounded. ConfigError: the folder does not exist, or has none of the
// files of a run.
Run read_run(const std::filesystem::path& folder);

// (step, epoch), from the start of the training to its last row. Rows of steps between those of epochs
// have no epoch of their own. Empty: the run has no epochs.
std::vector<Point> epochs_of(const Run& run);

// --- summary ---

// One line of a run's summary.
struct Fact {
  std::string label;
  std::string value;
  std::string detail;  // in small print; may be empty
};

// Loss, accuracy, epochs, steps, speed, duration and ranks, as far as the run has them.
std::vector<Fact> facts_of(const Run& run);

// The median of samples/s over the run's rows; 0: unknown. Unlike the mean, the median does not
// change with a slow first epoch or a disturbed one.
double median_speed(const Run& run);

// At most five significant digits, without an exponent where that is readable.
std::string number_text(double value);
// "42.1 s", "3 min 20 s", "2 h 05 min".
std::string duration_text(double seconds);

}  // namespace lockstep::report
