#include <fmt/format.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <algorithm>
#include <optional>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace lockstep::cli::ckpt {
namespace {

struct ListOptions {
  std::string folder;
  std::string best = "saved";  // by what: the mark of its run, or the metric (min or max)
  bool json = false;
};

using checkpoint::Entry;

struct CheckpointRow {
  Entry entry;
  std::optional<checkpoint::Manifest> manifest;  // of a valid one
  bool latest = false;
  bool best = false;
};

std::vector<CheckpointRow> rows_of(const std::filesystem::path& folder, const std::string& best) {
  using Best = checkpoint::RotationRule::Best;
  std::vector<CheckpointRow> rows;
  for (const Entry& entry : checkpoint::list(folder)) {
    CheckpointRow row{entry, std::nullopt, false, false};
    try {
      if (entry.valid()) row.manifest = checkpoint::Reader(entry.path).manifest();
    } catch (const Error& error) {  // a run that removes it meanwhile
      row.entry.problem = error.what();
    }
    row.latest = row.entry.valid() &&
                 std::none_of(rows.begin(), rows.end(), [](const CheckpointRow& r) { return r.latest; });
    rows.push_back(std::move(row));
  }
  std::vector<Entry> entries;
  for (const CheckpointRow& row : rows) entries.push_back(row.entry);
  const Best rule = best == "min" ? Best::kMin : best == "max" ? Best::kMax : Best::kSaved;
  // The metric of the newest one with a metric: a run may have changed best_metric.
  const auto ranked =
      std::find_if(entries.begin(), entries.end(), [](const Entry& e) { return e.valid() && e.metric; });
  const std::vector<size_t> order = checkpoint::best_first(
      entries, rule, ranked == entries.end() ? checkpoint::MetricKind() : ranked->metric_kind);
  if (!order.empty()) rows[order.front()].best = true;
  return rows;
}

std::string marks(const CheckpointRow& row) {
  std::string text = row.latest ? "latest" : "";
  if (row.best) text += text.empty() ? "best" : ", best";
  return row.entry.valid() ? text : "broken: " + row.entry.problem;
}

void print_table(const std::vector<CheckpointRow>& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"step", "epoch", "time", "size", "tensors", "ranks", "metric", ""}};
  for (const CheckpointRow& row : rows) {
    const auto& manifest = row.manifest;
    const auto number = [&](auto value) { return manifest ? std::to_string(value(*manifest)) : "-"; };
    cells.push_back({std::to_string(row.entry.step), number([](const auto& m) { return m.epoch; }),
                     row.entry.time.empty() ? "-" : row.entry.time,
                     manifest ? size_text(row.entry.bytes) : "-",
                     number([](const auto& m) { return m.tensors.size(); }),
                     number([](const auto& m) { return m.world_size; }),
                     row.entry.metric ? fmt::format("{:.6g}", *row.entry.metric) : "-", marks(row)});
  }
  fmt::print("{}", table_text(cells, {true, true, false, true, true, true, true, false}));
}

void print_json(const std::vector<CheckpointRow>& rows) {
  Json result = Json::array();
  for (const CheckpointRow& row : rows) {
    Json item = {{"step", row.entry.step},
                 {"path", row.entry.path.string()},
                 {"valid", row.entry.valid()},
                 {"latest", row.latest},
                 {"best", row.best}};
    if (!row.entry.valid()) item["problem"] = row.entry.problem;
    if (row.manifest) {
      item.update({{"epoch", row.manifest->epoch},
                   {"time", row.entry.time},
                   {"bytes", row.entry.bytes},
                   {"tensors", row.manifest->tensors.size()},
                   {"world_size", row.manifest->world_size}});
    }
    if (row.entry.metric) item["metric"] = *row.entry.metric;
    result.push_back(std::move(item));
  }
  fmt::print("{}\n", result.dump(Json::Print{.indent = 2, .replace_invalid = true}));
}

int list(const ListOptions& options) {
  if (!std::filesystem::is_directory(options.folder)) {
    throw ConfigError("ckpt", fmt::format("there is no folder '{}'", options.folder));
  }
  const std::filesystem::path folder = checkpoint::checkpoints_folder(options.folder);
  const std::vector<CheckpointRow> rows = rows_of(folder, options.best);
  if (rows.empty() && !options.json) {
    throw ConfigError("ckpt", fmt::format("there are no checkpoints in '{}'", folder.string()));
  }
  options.json ? print_json(rows) : print_table(rows);
  return kExitSuccess;
}

}  // namespace
}  // namespace lockstep::cli::ckpt

namespace lockstep::cli {

int run_ckpt_ls(int argc, const char* const* argv) {
  ckpt::ListOptions options;
  config::OptionTable("Lists the checkpoints of a run.", config::kNoVariables)
      .add_argument("FOLDER", options.folder, "the run's folder, or its folder of checkpoints",
                    {.required = true})
      .add("best", options.best,
           "which one is the best: as its run saved it, or the one with the least or greatest metric",
           {.choices = {"saved", "min", "max"}})
      .add("json", options.json, "print JSON", {.negatable = false})
      .parse(argc, argv);
  return ckpt::list(options);
}

}  // namespace lockstep::cli
