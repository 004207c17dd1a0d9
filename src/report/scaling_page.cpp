#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "base/atomic_file.h"
#include "report/escape.h"
#include "report/page.h"
#include "report/run_charts.h"
#include "report/scaling.h"
#include "report/summary.h"

namespace lockstep::report {
namespace {

std::string row_html(const ScalingRow& row, size_t colour) {
  const std::string head =
      fmt::format("<tr><th>{}{}</th>", row.went_well() ? colour_dot(colour) : "", escape_markup(row.label()));
  if (!row.went_well()) {
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
  for (const ScalingRow& row : scaling.rows) rows += row_html(row, row.went_well() ? colour++ : 0);
  return section(
      "Speed",
      fmt::format("<div class=\"scroll\"><table><thead><tr><th>Run</th><th class=\"number\">Samples/s</th>"
                  "<th class=\"number\">Speed-up</th><th class=\"number\">Efficiency</th>"
                  "<th class=\"number\">Duration</th><th class=\"number\">Training loss</th></tr></thead>\n"
                  "<tbody>{}</tbody></table></div>\n"
                  "<p class=\"subtitle\">Speed-up and efficiency are against the run with the fewest "
                  "CPUs in all; samples/s is the median of a run.</p>\n",
                  rows));
}

// A line for each number of CPUs a rank, a point for each number of ranks.
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
    Series series{.label = fmt::format("{} CPU{} a rank", size, size == 1 ? "" : "s"),
                  .colour = chart.series.size(),
                  .points = {}};
    std::map<double, double> points;
    for (const ScalingRow& row : scaling.rows) {
      if (row.went_well() && row.cpus_per_rank == size) points[row.ranks] = row.samples_per_s;
    }
    for (const auto& [ranks, speed] : points) series.points.push_back({ranks, speed});
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

// What each CPU more has brought, beside what it could at best.
Chart speed_up_chart(const Scaling& scaling) {
  Chart chart{.id = "speed-up",
              .title = "Speed-up against CPUs",
              .y_label = "times as fast",
              .x_label = "CPUs in all",
              .axis = Chart::Axis::kNumber,
              .from_zero = true,
              .has_points = true};
  std::map<int, std::map<double, double>> lines;
  std::set<double> cpus;
  double base = 0;
  for (const ScalingRow& row : scaling.rows) {
    if (!row.went_well() || row.speed_up <= 0) continue;
    lines[row.cpus_per_rank][row.cpus()] = row.speed_up;
    cpus.insert(row.cpus());
    base = *cpus.begin();
  }
  for (const auto& [size, points] : lines) {
    Series series{.label = fmt::format("{} CPU{} a rank", size, size == 1 ? "" : "s"),
                  .colour = chart.series.size(),
                  .points = {}};
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
    if (!row.went_well()) continue;
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
