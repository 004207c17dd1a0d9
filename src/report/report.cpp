#include "report/report.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <map>

#include "base/atomic_file.h"
#include "base/check.h"
#include "report/run.h"
#include "report/run_charts.h"
#include "report/run_page.h"
#include "report/svg_plot.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

// Runs of one name are told apart by their parents' names.
void make_names_distinct(std::vector<Run>& runs) {
  std::map<std::string, int> count;
  for (const Run& run : runs) ++count[run.name];
  for (Run& run : runs) {
    if (count[run.name] > 1) run.name = (run.folder.parent_path().filename() / run.name).string();
  }
}

std::vector<Run> read_runs(const std::vector<fs::path>& folders) {
  if (folders.empty()) throw ConfigError("report", "no run is given: name the folder of at least one");
  std::vector<Run> runs;
  for (const fs::path& folder : folders) runs.push_back(read_run(folder));
  make_names_distinct(runs);
  return runs;
}

double interpolate(const std::vector<Point>& map, double x) {
  const auto next = std::upper_bound(map.begin(), map.end(), x,
                                     [](double value, const Point& point) { return value < point.x; });
  if (next == map.begin()) return map.front().y;
  if (next == map.end()) return map.back().y;
  const Point& before = *(next - 1);
  return before.y + (next->y - before.y) * (x - before.x) / (next->x - before.x);
}

// A paper shows epochs where all runs tell them, else steps.
void place_on_paper(Chart& chart, const std::vector<Run>& runs) {
  if (chart.axis == Chart::Axis::kSeconds) chart.x_label = "seconds";
  if (chart.axis != Chart::Axis::kStep) return;
  std::vector<std::vector<Point>> epochs;
  for (const Run& run : runs) epochs.push_back(run.metrics.points("epoch"));
  const bool known =
      std::all_of(epochs.begin(), epochs.end(), [](const auto& map) { return map.size() > 1; });
  chart.x_label = known ? "epoch" : "step";
  if (!known) return;
  for (Series& series : chart.series) {
    for (Point& point : series.points) point.x = interpolate(epochs[series.run], point.x);
  }
}

}  // namespace

void write_report(const std::vector<fs::path>& run_folders, const fs::path& output) {
  base::publish_file(output, run_page(read_runs(run_folders)));
}

std::vector<fs::path> write_svgs(const std::vector<fs::path>& run_folders, const fs::path& folder) {
  const std::vector<Run> runs = read_runs(run_folders);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw ConfigError("report", fmt::format("cannot make the folder for pictures, {}: '{}'", error.message(),
                                            folder.string()));
  }
  std::vector<std::string> remarks;
  std::vector<fs::path> paths;
  for (Chart& chart : charts_of(runs, remarks)) {
    place_on_paper(chart, runs);
    paths.push_back(folder / (chart.id + ".svg"));
    base::publish_file(paths.back(), plot_svg(chart));
  }
  return paths;
}

}  // namespace lockstep::report
