#include "report/scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/file.h"
#include "report/chart.h"
#include "report/escape.h"
#include "report/page.h"
#include "report/run.h"
#include "report/run_files.h"

namespace lockstep::report {
namespace {

// The metrics of the terminal's table; most runs have one of them.
constexpr const char* kShownMetrics[] = {"train_loss", "val_loss", "val_accuracy", "test_accuracy"};

// The successful row with the fewest ranks, then CPUs; of those with this number of CPUs per rank if it is
// not 0.
const ScalingRow* base_row(const std::vector<ScalingRow>& rows, int cpus_per_rank) {
  const ScalingRow* base = nullptr;
  for (const ScalingRow& row : rows) {
    if (!row.succeeded() || row.samples_per_s <= 0) continue;
    if (cpus_per_rank != 0 && row.cpus_per_rank != cpus_per_rank) continue;
    const auto size = [](const ScalingRow& of) { return std::tuple(of.ranks, of.cpus_per_rank, of.nodes); };
    if (base == nullptr || size(row) < size(*base)) base = &row;
  }
  return base;
}

std::string metrics_text(const ScalingRow& row) {
  std::string text;
  for (const char* name : kShownMetrics) {
    const auto found = row.final_metrics.find(name);
    if (found != row.final_metrics.end()) text += fmt::format("  {} {}", name, number_text(found->second));
  }
  return text;
}

}  // namespace

std::string ScalingRow::label() const {
  const std::string places = nodes == 1 ? "" : fmt::format("{} nodes, ", nodes);
  return fmt::format("{}{} rank{}, {}{} CPU{}{}", places, ranks, ranks == 1 ? "" : "s",
                     one_gpu_each ? "1 GPU and " : "", cpus_per_rank, cpus_per_rank == 1 ? "" : "s",
                     ranks == 1 ? "" : " each");
}

void measure_row(ScalingRow& row) {
  try {
    const Run run = read_run(row.folder);
    if (run.metrics.rows() == 0) {
      row.failure = "the program wrote no metrics";
      return;
    }
    row.samples_per_s = median_speed(run);
    for (const std::string& name : run.metrics.names()) {
      const ThinnedTable::Totals* totals = run.metrics.totals(name);
      if (totals != nullptr && !is_per_step_column(name)) row.final_metrics[name] = totals->last.y;
    }
  } catch (const ConfigError&) {
    row.failure = fmt::format("the program left no run in {}", row.folder.string());
  }
}

void compare_rows(std::vector<ScalingRow>& rows) {
  const ScalingRow* first = base_row(rows, 0);
  if (first == nullptr) return;
  for (ScalingRow& row : rows) {
    const ScalingRow* base = base_row(rows, row.cpus_per_rank);
    if (!row.succeeded() || base == nullptr) continue;
    row.speed_up = row.samples_per_s / base->samples_per_s;
    row.efficiency = row.speed_up * base->ranks / row.ranks;
    if (row.seconds > 0) row.page_speed_up = first->seconds / row.seconds;
    row.page_efficiency = row.page_speed_up / row.ranks;
  }
}

std::string scaling_table(const Scaling& scaling) {
  std::string text =
      fmt::format("{:>6}{:>6}{:>14}{:>12}{:>10}{:>12}{:>10}{:>15}\n", "nodes", "ranks", "CPUs per rank",
                  "samples/s", "speed-up", "efficiency", "seconds", "by duration");
  for (const ScalingRow& row : scaling.rows) {
    text += fmt::format("{:>6}{:>6}{:>14}", row.nodes, row.ranks, row.cpus_per_rank);
    text += row.succeeded()
                ? fmt::format("{:>12}{:>10.2f}{:>11.0f}%{:>10.1f}{:>15}{}\n",
                              number_text(std::round(row.samples_per_s)), row.speed_up, 100 * row.efficiency,
                              row.seconds,
                              fmt::format("{:.2f}, {:.0f}%", row.page_speed_up, 100 * row.page_efficiency),
                              metrics_text(row))
                : fmt::format("  {}\n", row.failure);
  }
  return text +
         "Speed-up and efficiency: samples/s of a rank, against the fewest ranks with as many CPUs each.\n"
         "By duration: of whole runs, start and validation included, against the first row.\n";
}

Json scaling_json(const Scaling& scaling) {
  Json result = {
      {"command", scaling.command}, {"host", scaling.host}, {"cpus", scaling.cpus}, {"rows", Json::array()}};
  for (const ScalingRow& row : scaling.rows) {
    Json entry = {{"nodes", row.nodes},
                  {"ranks", row.ranks},
                  {"cpus_per_rank", row.cpus_per_rank},
                  {"gpus", row.one_gpu_each ? row.ranks : 0},
                  {"folder", row.folder.string()}};
    if (row.succeeded()) {
      entry["seconds"] = row.seconds;
      entry["samples_per_s"] = row.samples_per_s;
      entry["speed_up"] = row.speed_up;
      entry["efficiency"] = row.efficiency;
      entry["speed_up_by_duration"] = row.page_speed_up;
      entry["efficiency_by_duration"] = row.page_efficiency;
      entry["final_metrics"] = row.final_metrics;
    } else {
      entry["failure"] = row.failure;
    }
    result["rows"].push_back(std::move(entry));
  }
  return result;
}

// --- the page ---

namespace {

std::string row_html(const ScalingRow& row, size_t colour) {
  const std::string head =
      fmt::format("<tr><th>{}{}</th>", row.succeeded() ? colour_dot(colour) : "", escape_markup(row.label()));
  if (!row.succeeded()) {
    return head + fmt::format("<td colspan=\"6\" class=\"{}\">{}</td></tr>\n",
                              row.was_run ? "failed" : "left-out", escape_markup(row.failure));
  }
  const auto loss = row.final_metrics.find("train_loss");
  return head +
         fmt::format(
             "<td class=\"number\">{}</td><td class=\"number\">{:.2f}</td><td class=\"number\">{:.0f} %</td>"
             "<td class=\"number\">{}</td><td class=\"number\">{:.2f}, {:.0f} %</td><td "
             "class=\"number\">{}</td>"
             "</tr>\n",
             number_text(std::round(row.samples_per_s)), row.speed_up, 100 * row.efficiency,
             duration_text(row.seconds), row.page_speed_up, 100 * row.page_efficiency,
             loss == row.final_metrics.end() ? "–" : number_text(loss->second));
}

std::string table_html(const Scaling& scaling) {
  std::string rows;
  size_t colour = 0;
  for (const ScalingRow& row : scaling.rows) rows += row_html(row, row.succeeded() ? colour++ : 0);
  return section(
      "Speed",
      fmt::format(
          "<div class=\"scroll\"><table><thead><tr><th>Run</th><th class=\"number\">Samples/s</th>"
          "<th class=\"number\">Speed-up</th><th class=\"number\">Efficiency</th>"
          "<th class=\"number\">Duration</th><th class=\"number\">By duration</th>"
          "<th class=\"number\">Training loss</th></tr></thead>\n"
          "<tbody>{}</tbody></table></div>\n"
          "<p class=\"subtitle\">Speed-up and efficiency compare samples/s of a rank with the run with "
          "the fewest ranks that has as many CPUs per rank; samples/s is the median of a run. By duration: "
          "as some pages compute them, by the time from start to end, against the first run.</p>\n",
          rows));
}

// The lines of a chart over ranks: one for each number of CPUs per rank and, in a study over nodes, for each
// number of nodes or of ranks per node, whichever are fewer, so that the lines are long. The number of ranks
// then names one run of a line.
class RankLines {
 public:
  explicit RankLines(const Scaling& scaling) : scaling_(scaling) {
    std::set<int> nodes;
    std::set<int> ranks_per_node;
    for (const ScalingRow& row : scaling.rows) {
      nodes.insert(row.nodes);
      ranks_per_node.insert(row.ranks / row.nodes);
    }
    over_nodes_ = !nodes.empty() && *nodes.rbegin() > 1;
    by_nodes_ = nodes.size() <= ranks_per_node.size();
  }

  // The lines of a value that is above 0 for each run that has it.
  std::vector<Series> of(double ScalingRow::*value) const {
    std::map<Name, std::map<double, double>> lines;
    for (const ScalingRow& row : scaling_.rows) {
      if (row.succeeded() && row.*value > 0) lines[name_of(row)][row.ranks] = row.*value;
    }
    std::vector<Series> result;
    for (const auto& [name, points] : lines) {
      Series series{.label = text_of(name), .colour = result.size(), .points = {}};
      for (const auto& [ranks, at] : points) series.points.push_back({ranks, at});
      result.push_back(std::move(series));
    }
    return result;
  }

 private:
  using Name = std::pair<int, int>;  // CPUs per rank; nodes, or ranks of each node

  Name name_of(const ScalingRow& row) const {
    return {row.cpus_per_rank, by_nodes_ ? row.nodes : row.ranks / row.nodes};
  }

  std::string text_of(const Name& name) const {
    const auto count = [](int number, const char* what) {
      return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
    };
    std::string cpus = count(name.first, "CPU") + " per rank";
    if (!over_nodes_) return cpus;
    return fmt::format(
        "{}, {}", by_nodes_ ? count(name.second, "node") : count(name.second, "rank") + " per node", cpus);
  }

  const Scaling& scaling_;
  bool over_nodes_ = false;
  bool by_nodes_ = false;
};

Chart speed_chart(const Scaling& scaling) {
  return {.id = "speed-ranks",
          .title = "Speed against ranks",
          .y_label = "samples/s",
          .x_label = "ranks",
          .axis = Chart::Axis::kNumber,
          .from_zero = true,
          .has_points = true,
          .series = RankLines(scaling).of(&ScalingRow::samples_per_s)};
}

// The speed-up of each number of ranks, beside the ideal one.
Chart speed_up_chart(const Scaling& scaling) {
  Chart chart{.id = "speed-up",
              .title = "Speed-up against ranks",
              .y_label = "times as fast",
              .x_label = "ranks",
              .axis = Chart::Axis::kNumber,
              .from_zero = true,
              .has_points = true,
              .series = RankLines(scaling).of(&ScalingRow::speed_up)};
  std::set<double> ranks;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) ranks.insert(point.x);
  }
  Series ideal{.label = "ideal", .colour = 7, .dash = Dash::kDashed, .points = {}};
  for (const double count : ranks) ideal.points.push_back({count, count / *ranks.begin()});
  if (ideal.points.size() > 1) chart.series.push_back(std::move(ideal));
  return chart;
}

// The metrics that are drawn over epochs, as far as a run has them.
struct EpochMetric {
  const char* column;
  const char* title;
};
constexpr EpochMetric kEpochMetrics[] = {{"train_loss", "Training loss"},
                                         {"train_accuracy", "Training accuracy"},
                                         {"val_loss", "Validation loss"},
                                         {"val_accuracy", "Validation accuracy"}};

// A value of each epoch; rows without an epoch are left out.
std::vector<Point> over_epochs(const ThinnedTable& metrics, const std::string& column) {
  std::map<double, double> epochs;
  for (const Point& point : metrics.points("epoch")) epochs[point.x] = point.y;
  std::map<double, double> points;
  for (const Point& point : metrics.points(column)) {
    const auto epoch = epochs.find(point.x);
    if (epoch != epochs.end()) points[epoch->second] = point.y;
  }
  std::vector<Point> result;
  for (const auto& [epoch, value] : points) result.push_back({epoch, value});
  return result;
}

// Loss and accuracy of every setting: what a larger global batch costs.
void add_epoch_charts(const Scaling& scaling, std::vector<Chart>& charts) {
  const size_t first = charts.size();
  for (const EpochMetric& metric : kEpochMetrics) {
    std::string id = metric.column;
    std::replace(id.begin(), id.end(), '_', '-');
    charts.push_back({.id = id + "-epochs",
                      .title = std::string(metric.title) + " against epochs",
                      .y_label = metric.column,
                      .x_label = "epochs",
                      .axis = Chart::Axis::kNumber,
                      .has_points = true});
  }
  size_t colour = 0;
  for (const ScalingRow& row : scaling.rows) {
    if (!row.succeeded() || row.folder.empty()) continue;
    const Run run = read_run(row.folder);
    for (size_t i = 0; i < std::size(kEpochMetrics); ++i) {
      std::vector<Point> points = over_epochs(run.metrics, kEpochMetrics[i].column);
      if (points.empty()) continue;
      charts[first + i].series.push_back(
          {.label = row.label(), .colour = colour, .points = std::move(points)});
    }
    ++colour;
  }
}

}  // namespace

std::vector<Chart> scaling_charts(const Scaling& scaling) {
  std::vector<Chart> charts = {speed_chart(scaling), speed_up_chart(scaling)};
  add_epoch_charts(scaling, charts);
  std::erase_if(charts, [](const Chart& chart) { return chart.series.empty(); });
  return charts;
}

void write_scaling_report(const Scaling& scaling, const std::filesystem::path& output) {
  Page page;
  for (const ScalingRow& row : scaling.rows) {
    if (!row.succeeded()) continue;
    page.runs.push_back(read_run(row.folder));
    page.runs.back().name = row.label();
  }
  page.title = "Scaling";
  page.subtitle = fmt::format(
      "{} {}", fmt::join(scaling.command, " "),
      scaling.by_slurm ? "in Slurm jobs" : fmt::format("on {}, {} CPUs", scaling.host, scaling.cpus));
  page.before = table_html(scaling);
  page.charts = scaling_charts(scaling);
  std::vector<std::string> remarks;
  for (Chart& chart : charts_of(page.runs, remarks)) page.charts.push_back(std::move(chart));
  base::publish_file(output, render_page(page));
}

}  // namespace lockstep::report
