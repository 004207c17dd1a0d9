#include "report/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include "base/folder.h"

#include "base/file.h"
#include "report/run_files.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 3> kRunFiles = {"metrics.csv", "metrics.jsonl", "config.json"};
constexpr uintmax_t kMaxJsonBytes = 16 << 20;

bool is_run(const fs::path& folder) {
  std::error_code error;
  return std::any_of(kRunFiles.begin(), kRunFiles.end(),
                     [&](const char* name) { return fs::is_regular_file(folder / name, error); });
}

// The runs directly below, as a hint for a user who gave their parent folder.
std::string runs_below(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> found;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    if (is_run(entry.path())) found.push_back(entry.path().string());
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
    throw ConfigError(
        "report", fmt::format("there is no such folder, give the folder of a run: '{}'", folder.string()));
  }
  if (!is_run(folder)) {
    throw ConfigError("report", fmt::format("the folder is not a run, it has none of {}: '{}'{}",
                                            fmt::join(kRunFiles, ", "), folder.string(), runs_below(folder)));
  }
}

// The JSON object of a file; empty if there is none.
Json read_object(const fs::path& path, bool is_expected, std::vector<std::string>& remarks) {
  const std::string file = path.filename().string();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    if (is_expected) remarks.push_back(fmt::format("{} is missing", file));
    return Json::object();
  }
  const uintmax_t size = fs::file_size(path, error);
  if (error || size > kMaxJsonBytes) {
    remarks.push_back(fmt::format("{}: too large, not written by Lockstep", file));
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

// The members of an object, such as the hyperparameters, as options of their own: "hyperparams.lr".
Json options_of(const Json& config) {
  Json options = Json::object();
  for (const auto& [name, value] : config.items()) {
    if (!value.is_object()) {
      options[name] = value;
      continue;
    }
    for (const auto& [inner_name, inner] : value.items()) options[name + "." + inner_name] = inner;
  }
  return options;
}

std::string text_of(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string()
             ? object[key].get<std::string>()
             : "";
}

int64_t integer_of(const Json& object, const char* key, int64_t otherwise) {
  return object.contains(key) && object[key].is_integer_of<int64_t>() ? object[key].get<int64_t>()
                                                                      : otherwise;
}

void read_ranks(Run& run) {
  // Only newer runs have this file: no remark if it is missing.
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
    run.remarks.push_back(fmt::format(
        "{} rows are shown thinned: the least and the greatest value of each of {} groups of rows",
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
  run.config = options_of(read_object(run.folder / "config.json", /*is_expected=*/true, run.remarks));
  run.defaults =
      options_of(read_object(run.folder / "config_defaults.json", /*is_expected=*/false, run.remarks));
  read_ranks(run);
  StepTimes steps = sample_step_times(run.folder / "metrics.jsonl");
  run.times = std::move(steps.times);
  run.model = std::move(steps.model);
  run.gpus = read_gpu_logs(run.folder, run.remarks);
  remark_values(run);
  return run;
}

std::vector<Point> epochs_of(const Run& run) {
  std::vector<Point> epochs = run.metrics.points("epoch");
  if (epochs.empty()) return epochs;
  if (epochs.front().x > 0 && epochs.front().y > 0) epochs.insert(epochs.begin(), {0, 0});
  const Point last = epochs.back();
  const double end = run.metrics.last_x();
  // The running epoch is as long as those before it.
  if (end > last.x && last.x > 0) epochs.push_back({end, end * last.y / last.x});
  return epochs;
}

// --- summary ---

namespace {

using Totals = ThinnedTable::Totals;

// "at epoch 7" for a step. Rows have both step and epoch, so that scaling by the last row is exact
// for epochs of equal length and close for others.
std::string at_epoch(const Run& run, double step) {
  const Totals* epochs = run.metrics.totals("epoch");
  if (epochs == nullptr || epochs->last.x <= 0) return fmt::format("at step {:.0f}", step);
  return fmt::format("at epoch {:.0f}", step * epochs->last.y / epochs->last.x);
}

void add_metric(std::vector<Fact>& facts, const Run& run, const std::string& column, const std::string& label,
                bool greater_is_better) {
  const Totals* totals = run.metrics.totals(column);
  if (totals == nullptr) return;
  const Point best = greater_is_better ? totals->greatest : totals->least;
  std::string detail;
  if (best.y != totals->last.y)
    detail = fmt::format("best {} {}", number_text(best.y), at_epoch(run, best.x));
  facts.push_back({label, number_text(totals->last.y), detail});
}

void add_progress(std::vector<Fact>& facts, const Run& run) {
  if (run.metrics.rows() == 0) return;
  if (const Totals* epochs = run.metrics.totals("epoch")) {
    const Json wanted = run.config.value("max_iter", Json());
    const bool known = wanted.is_number() && wanted.get<double>() != epochs->last.y;
    facts.push_back({"Epochs", number_text(epochs->last.y),
                     known ? fmt::format("of {} at most", number_text(wanted.get<double>())) : ""});
    facts.push_back({"Steps", number_text(epochs->last.x), ""});
  } else {
    facts.push_back({"Steps", number_text(run.metrics.last_x()), ""});
  }
}

void add_speed(std::vector<Fact>& facts, const Run& run) {
  if (const Totals* speed = run.metrics.totals("samples_per_s")) {
    facts.push_back({"Samples/s", number_text(std::round(median_speed(run))),
                     fmt::format("median; {} at best", number_text(std::round(speed->greatest.y)))});
  }
  if (run.times.size() > 1) {
    facts.push_back(
        {"Duration", duration_text(run.times.back().y - run.times.front().y), "from first to last write"});
  }
}

void add_ranks(std::vector<Fact>& facts, const Run& run) {
  if (run.ranks.empty()) {
    const Json nprocs = run.config.value("nprocs", Json());
    if (nprocs.is_number()) facts.push_back({"Ranks", number_text(nprocs.get<double>()), ""});
    return;
  }
  std::set<std::string> hosts;
  for (const RankPlace& place : run.ranks) hosts.insert(place.host);
  const std::string device = run.ranks.front().device.substr(0, run.ranks.front().device.find(':'));
  std::string detail = fmt::format("{} on {} host{}", device, hosts.size(), hosts.size() == 1 ? "" : "s");
  if (!run.backend.empty() && run.backend != "none") detail += ", " + run.backend;
  facts.push_back({"Ranks", number_text(static_cast<double>(run.ranks.size())), detail});
}

}  // namespace

std::vector<Fact> facts_of(const Run& run) {
  std::vector<Fact> facts;
  add_metric(facts, run, "train_loss", "Training loss", /*greater_is_better=*/false);
  if (facts.empty()) add_metric(facts, run, "step_loss", "Loss of a step", false);
  add_metric(facts, run, "val_loss", "Validation loss", false);
  add_metric(facts, run, "test_loss", "Test loss", false);
  for (const auto& [column, label] :
       std::map<std::string, std::string>{{"train_accuracy", "Training accuracy"},
                                          {"val_accuracy", "Validation accuracy"},
                                          {"test_accuracy", "Test accuracy"}}) {
    add_metric(facts, run, column, label, /*greater_is_better=*/true);
  }
  add_progress(facts, run);
  add_speed(facts, run);
  add_ranks(facts, run);
  return facts;
}

double median_speed(const Run& run) {
  std::vector<Point> speeds = run.metrics.means("samples_per_s");
  if (speeds.empty()) return 0;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end(),
                   [](const Point& a, const Point& b) { return a.y < b.y; });
  return middle->y;
}

std::string number_text(double value) {
  if (value == std::round(value) && std::fabs(value) < 1e15) {
    std::string digits = fmt::format("{:.0f}", std::fabs(value));
    for (int place = static_cast<int>(digits.size()) - 3; place > 0 && std::fabs(value) >= 1e4; place -= 3) {
      digits.insert(static_cast<size_t>(place), ",");
    }
    return value < 0 ? "-" + digits : digits;
  }
  return fmt::format("{:.5g}", value);
}

std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.2g} s", seconds < 10 ? seconds : std::round(seconds));
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

}  // namespace lockstep::report
