#include "report/scaling.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cmath>

#include "report/metrics_file.h"
#include "report/summary.h"

namespace lockstep::report {
namespace {

// What a person compares first; runs have one of them as a rule.
constexpr const char* kShownMetrics[] = {"train_loss", "val_loss", "val_accuracy", "test_accuracy"};

const ScalingRow* base_row(const std::vector<ScalingRow>& rows) {
  const ScalingRow* base = nullptr;
  for (const ScalingRow& row : rows) {
    if (!row.went_well() || row.samples_per_s <= 0) continue;
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
    if (!row.went_well()) continue;
    row.speed_up = row.samples_per_s / base_speed;
    row.efficiency = row.speed_up * base_cpus / row.cpus();
  }
}

std::string scaling_table(const Scaling& scaling) {
  std::string text = fmt::format("{:>6}{:>14}{:>12}{:>10}{:>12}{:>10}\n", "ranks", "CPUs a rank", "samples/s",
                                 "speed-up", "efficiency", "seconds");
  for (const ScalingRow& row : scaling.rows) {
    text += fmt::format("{:>6}{:>14}", row.ranks, row.cpus_per_rank);
    text += row.went_well() ? fmt::format("{:>12}{:>10.2f}{:>11.0f}%{:>10.1f}{}\n",
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
    if (row.went_well()) {
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

}  // namespace lockstep::report
