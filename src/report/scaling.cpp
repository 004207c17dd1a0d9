#include "report/scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <cmath>
#include <set>

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

const ScalingRow* base_row(const std::vector<ScalingRow>& rows) {
  const ScalingRow* base = nullptr;
  for (const ScalingRow& row : rows) {
    if (!row.succeeded() || row.samples_per_s <= 0) continue;
    if (base == nullptr || row.cpus() < base->cpus()) base = &row;
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
  return fmt::format("{} rank{}, {} CPU{}{}", ranks, ranks == 1 ? "" : "s", cpus_per_rank,
                     cpus_per_rank == 1 ? "" : "s", ranks == 1 ? "" : " each");
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
  const ScalingRow* base = base_row(rows);
  if (base == nullptr) return;
  const double base_speed = base->samples_per_s;
  const double base_cpus = base->cpus();
  for (ScalingRow& row : rows) {
    if (!row.succeeded()) continue;
    row.speed_up = row.samples_per_s / base_speed;
    row.efficiency = row.speed_up * base_cpus / row.cpus();
  }
}

std::string scaling_table(const Scaling& scaling) {
  std::string text = fmt::format("{:>6}{:>14}{:>12}{:>10}{:>12}{:>10}\n", "ranks", "CPUs per rank",
                                 "samples/s", "speed-up", "efficiency", "seconds");
  for (const ScalingRow& row : scaling.rows) {
    text += fmt::format("{:>6}{:>14}", row.ranks, row.cpus_per_rank);
    text += row.succeeded() ? fmt::format("{:>12}{:>10.2f}{:>11.0f}%{:>10.1f}{}\n",
                                          number_text(std::round(row.samples_per_s)), row.speed_up,
                                          100 * row.efficiency, row.seconds, metrics_text(row))
                            : fmt::format("  {}\n", row.failure);
  }
  return text;
}

Json scaling_json(const Scaling& scaling) {
  Json result = {
      {"command", scaling.command}, {"host", scaling.host}, {"cpus", scaling.cpus}, {"rows", Json::array()}};
  for (const ScalingRow& row : scaling.rows) {
    Json entry = {
        {"ranks", row.ranks}, {"cpus_per_rank", row.cpus_per_rank}, {"folder", row.folder.string()}};
    if (row.succeeded()) {
      entry["seconds"] = row.seconds;
      entry["samples_per_s"] = row.samples_per_s;
      entry["speed_up"] = row.speed_up;
      entry["efficiency"] = row.efficiency;
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
    return head + fmt::format("<td colspan=\"5\" class=\"{}\">{}</td></tr>\n",
                              row.was_run ? "failed" : "left-out", escape_markup(row.failure));
  }
  const auto loss = row.final_metrics.find("train_loss");
  return head +
         fmt::format(
             "<td class=\"number\">{}</td><td class=\"number\">{:.2f}</td><td class=\"number\">{:.0f} %</td>"
             "<td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
             number_text(std::round(row.samples_per_s)), row.speed_up, 100 * row.efficiency,
             duration_text(row.seconds), loss == row.final_metrics.end() ? "–" : number_text(loss->second));
}

std::string table_html(const Scaling& scaling) {
  std::string rows;
  size_t colour = 0;
  for (const ScalingRow& row : scaling.rows) rows += row_html(row, row.succeeded() ? colour++ : 0);
  return section(
      "Speed",
      fmt::format("<div class=\"scroll\"><table><thead><tr><th>Run</th><th class=\"number\">Samples/s</th>"
                  "<th class=\"number\">Speed-up</th><th class=\"number\">Efficiency</th>"
                  "<th class=\"number\">Duration</th><th class=\"number\">Training loss</th></tr></thead>\n"
                  "<tbody>{}</tbody></table></div>\n"
                  "<p class=\"subtitle\">Speed-up and efficiency are against the run with the fewest "
                  "CPUs in total; samples/s is the median of a run.</p>\n",
                  rows));
}

std::string cpus_per_rank_text(int cpus) {
  return fmt::format("{} CPU{} per rank", cpus, cpus == 1 ? "" : "s");
}

// One line for each number of CPUs per rank, one point for each number of ranks.
Chart speed_chart(const Scaling& scaling) {
  Chart chart{.id = "speed-ranks",
              .title = "Speed against ranks",
              .y_label = "samples/s",
              .x_label = "ranks",
              .axis = Chart::Axis::kNumber,
              .from_zero = true,
              .has_points = true};
  std::set<int> sizes;
  for (const ScalingRow& row : scaling.rows) sizes.insert(row.cpus_per_rank);
  for (const int size : sizes) {
    Series series{.label = cpus_per_rank_text(size), .colour = chart.series.size(), .points = {}};
    std::map<double, double> points;
    for (const ScalingRow& row : scaling.rows) {
      if (row.succeeded() && row.cpus_per_rank == size) points[row.ranks] = row.samples_per_s;
    }
    for (const auto& [ranks, speed] : points) series.points.push_back({ranks, speed});
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

// The speed-up of each number of CPUs, beside the ideal one.
Chart speed_up_chart(const Scaling& scaling) {
  Chart chart{.id = "speed-up",
              .title = "Speed-up against CPUs",
              .y_label = "times as fast",
              .x_label = "CPUs in total",
              .axis = Chart::Axis::kNumber,
              .from_zero = true,
              .has_points = true};
  std::map<int, std::map<double, double>> lines;
  std::set<double> cpus;
  double base = 0;
  for (const ScalingRow& row : scaling.rows) {
    if (!row.succeeded() || row.speed_up <= 0) continue;
    lines[row.cpus_per_rank][row.cpus()] = row.speed_up;
    cpus.insert(row.cpus());
    base = *cpus.begin();
  }
  for (const auto& [size, points] : lines) {
    Series series{.label = cpus_per_rank_text(size), .colour = chart.series.size(), .points = {}};
    for (const auto& [count, speed_up] : points) series.points.push_back({count, speed_up});
    chart.series.push_back(std::move(series));
  }
  Series ideal{.label = "ideal", .colour = 7, .dash = Dash::kDashed, .points = {}};
  for (const double count : cpus) ideal.points.push_back({count, count / base});
  if (ideal.points.size() > 1) chart.series.push_back(std::move(ideal));
  return chart;
}

}  // namespace

std::vector<Chart> scaling_charts(const Scaling& scaling) {
  std::vector<Chart> charts = {speed_chart(scaling), speed_up_chart(scaling)};
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
  page.subtitle =
      fmt::format("{} on {}, {} CPUs", fmt::join(scaling.command, " "), scaling.host, scaling.cpus);
  page.before = table_html(scaling);
  page.charts = scaling_charts(scaling);
  std::vector<std::string> remarks;
  for (Chart& chart : charts_of(page.runs, remarks)) page.charts.push_back(std::move(chart));
  base::publish_file(output, render_page(page));
}

}  // namespace lockstep::report
