#include "report/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/whole_file.h"
#include "report/metrics_file.h"
#include "report/step_times.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 3> kSigns = {"metrics.csv", "metrics.jsonl", "config.json"};
constexpr uintmax_t kMaxJsonBytes = 16 << 20;

bool is_run(const fs::path& folder) {
  std::error_code error;
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [&](const char* name) { return fs::is_regular_file(folder / name, error); });
}

// Runs right below, for someone who named their parent.
std::string runs_below(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_run(entry->path())) found.push_back(entry->path().string());
  }
  if (found.empty()) return "";
  std::sort(found.begin(), found.end());
  const size_t shown = std::min<size_t>(found.size(), 3);
  return fmt::format("; runs below it: {}{}", fmt::join(found.begin(), found.begin() + shown, ", "),
                     found.size() > shown ? ", ..." : "");
}

void check_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw ConfigError("report",
                      fmt::format("there is no such folder, give that of a run: '{}'", folder.string()));
  }
  if (!is_run(folder)) {
    throw ConfigError("report", fmt::format("the folder is no run, it holds none of {}: '{}'{}",
                                            fmt::join(kSigns, ", "), folder.string(), runs_below(folder)));
  }
}

// An object, empty where the file holds none.
Json read_object(const fs::path& path, bool is_expected, std::vector<std::string>& remarks) {
  const std::string file = path.filename().string();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    if (is_expected) remarks.push_back(fmt::format("{} is missing", file));
    return Json::object();
  }
  const uintmax_t size = fs::file_size(path, error);
  if (error || size > kMaxJsonBytes) {
    remarks.push_back(fmt::format("{}: too large to be ours", file));
    return Json::object();
  }
  const std::optional<std::string> text = base::read_whole_file(path);
  if (!text) {
    remarks.push_back(fmt::format("{} cannot be read: {}", file, std::strerror(errno)));
    return Json::object();
  }
  Json object = Json::try_parse(*text).value_or(nullptr);
  if (!object.is_object()) {
    remarks.push_back(fmt::format("{}: not a JSON object, it may be cut off", file));
    return Json::object();
  }
  return object;
}

std::string text_of(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string()
             ? object[key].get<std::string>()
             : "";
}

int64_t integer_of(const Json& object, const char* key, int64_t otherwise) {
  return object.contains(key) && object[key].is_number_integer() ? object[key].get<int64_t>() : otherwise;
}

void read_ranks(Run& run) {
  // Only runs of Lockstep have it, and older ones have not: its absence is no loss.
  const Json object = read_object(run.folder / "ranks.json", /*is_expected=*/false, run.remarks);
  run.backend = text_of(object, "backend");
  if (!object.contains("ranks") || !object["ranks"].is_array()) return;
  for (const Json& place : object["ranks"]) {
    if (!place.is_object()) continue;
    run.ranks.push_back({.rank = integer_of(place, "rank", static_cast<int64_t>(run.ranks.size())),
                         .local_rank = integer_of(place, "local_rank", 0),
                         .host = text_of(place, "host"),
                         .device = text_of(place, "device")});
  }
}

void read_metrics(Run& run) {
  if (read_metrics_csv(run.folder / "metrics.csv", run.metrics, run.remarks)) return;
  if (read_metrics_jsonl(run.folder / "metrics.jsonl", run.metrics, run.remarks)) {
    run.remarks.push_back("metrics.csv has no rows: the metrics are those of metrics.jsonl");
    return;
  }
  run.remarks.push_back("there are no metrics: neither metrics.csv nor metrics.jsonl has a row");
}

void remark_values(Run& run) {
  for (const std::string& name : run.metrics.names()) {
    const ThinnedTable::Totals* totals = run.metrics.all_totals(name);
    if (totals->not_finite == 0 || is_per_step_column(name)) continue;
    run.remarks.push_back(fmt::format("{}: {} value{} nan or infinite, the first at step {}", name,
                                      totals->not_finite, totals->not_finite == 1 ? " is" : "s are",
                                      totals->first_not_finite_x));
  }
  if (run.metrics.is_thinned()) {
    run.remarks.push_back(
        fmt::format("{} rows are shown thinned: of each of {} stretches the least and the greatest value",
                    run.metrics.rows(), ThinnedTable::kMaxBuckets));
  }
}

}  // namespace

Run read_run(const fs::path& folder) {
  check_folder(folder);
  Run run;
  run.folder = fs::absolute(folder).lexically_normal();
  if (!run.folder.has_filename()) run.folder = run.folder.parent_path();
  run.name = run.folder.filename().string();
  read_metrics(run);
  run.config = read_object(run.folder / "config.json", /*is_expected=*/true, run.remarks);
  run.defaults = read_object(run.folder / "config_defaults.json", /*is_expected=*/false, run.remarks);
  read_ranks(run);
  StepTimes steps = sample_step_times(run.folder / "metrics.jsonl");
  run.times = std::move(steps.times);
  run.model = std::move(steps.model);
  run.gpus = read_gpu_logs(run.folder, run.remarks);
  remark_values(run);
  return run;
}

}  // namespace lockstep::report
