#pragma once

#include <lockstep/json.h>
#include <filesystem>
#include <string>
#include <vector>

#include "report/gpu_log.h"
#include "report/thinned_table.h"

namespace lockstep::report {

struct RankPlace {
  int64_t rank = 0;
  int64_t local_rank = 0;
  std::string host;
  std::string device;
};

// What a run has left in its folder. Whatever is missing is empty, and `remarks` says so.
struct Run {
  std::filesystem::path folder;
  std::string name;  // the folder's
  Json config = Json::object();
  Json defaults = Json::object();  // of config; may lack keys
  std::vector<RankPlace> ranks;
  std::string backend;
  ThinnedTable metrics;      // x: the step
  std::vector<Point> times;  // (step, seconds since 1970), rising in both; a sample
  std::vector<GpuLog> gpus;  // a log a node
  std::string model;         // its layers as text
  std::vector<std::string> remarks;
};

// Reads a run's folder: metrics.csv (else metrics.jsonl), config.json and its defaults,
// ranks.json, the GPUs' logs. Broken and foreign files never stop it; memory and time are bounded
// by the size of the files, memory also for endless ones. ConfigError: the folder is not
// there, or holds none of what makes a run.
Run read_run(const std::filesystem::path& folder);

}  // namespace lockstep::report
