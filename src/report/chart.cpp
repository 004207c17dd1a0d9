#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "report/run_files.h"

namespace lockstep::report {
namespace {

struct Phase {
  std::string_view prefix;
  std::string_view label;
  Dash dash;
};
constexpr std::array<Phase, 3> kPhases = {{{"train_", "training", Dash::kSolid},
                                           {"val_", "validation", Dash::kDashed},
                                           {"test_", "test", Dash::kDotted}}};

// Values of single steps of the training.
constexpr std::string_view kStepPrefix = "step_";
constexpr size_t kStepColour = 5;

// The parts of a step in the order in which they happen.
struct StepPart {
  std::string_view name;
  std::string_view label;
};
constexpr std::array<StepPart, 5> kStepParts = {{{"data", "waiting for data"},
                                                 {"forward", "forward"},
                                                 {"backward", "backward"},
                                                 {"exposed_communication", "exposed communication"},
                                                 {"optimizer", "optimizer"}}};

const Phase* phase_of(std::string_view column) {
  for (const Phase& phase : kPhases) {
    if (column.starts_with(phase.prefix) && column.size() > phase.prefix.size()) return &phase;
  }
  return nullptr;
}

// "loss" of "val_loss" and of "step_loss"; empty: the column has no phase.
std::string base_of(std::string_view column) {
  if (const Phase* const phase = phase_of(column)) return std::string(column.substr(phase->prefix.size()));
  if (column.starts_with(kStepPrefix)) return std::string(column.substr(kStepPrefix.size()));
  return {};
}

// "grad_norm/fc1" becomes "Grad norm/fc1".
std::string title_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  if (!name.empty()) name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

std::string id_of(std::string_view name) {
  std::string id;
  for (const char c : name.substr(0, 60)) {
    id += std::isalnum(static_cast<unsigned char>(c)) != 0 ? static_cast<char>(std::tolower(c)) : '-';
  }
  return id;
}

class ChartBuilder {
 public:
  ChartBuilder(const std::vector<Run>& runs, std::vector<std::string>& remarks)
      : runs_(runs), remarks_(remarks) {}

  std::vector<Chart> build() {
    add_phases("loss", "Loss");
    add_phases("accuracy", "Accuracy");
    for (const std::string& base : other_bases()) add_phases(base, title_of(base));
    add_columns({"learning_rate"}, "Learning rate", "learning rate");
    add_columns({"samples_per_s"}, "Speed", "samples/s", /*from_zero=*/true);
    add_step_parts();
    add_columns({"grad_norm"}, "Gradient norm", "gradient norm");
    add_columns({"memory_mib"}, "Memory", "MiB", /*from_zero=*/true);
    add_gpus("gpu-utilization", "GPU utilisation", "percent", utilization_column);
    add_gpus("gpu-memory", "GPU memory", "GiB in use", memory_column);
    add_gpus("gpu-power", "GPU power", "watts", power_column);
    add_gpus("gpu-temperature", "GPU temperature", "degrees Celsius", temperature_column);
    remark_gpus();
    add_others();
    return std::move(charts_);
  }

 private:
  bool one_run() const { return runs_.size() == 1; }

  // One line of a run. With several runs the colour shows the run, with one run the line.
  Series series(size_t run, const std::string& label, size_t colour, Dash dash,
                std::vector<Point> points) const {
    if (one_run()) return {label, run, colour, Dash::kSolid, std::move(points)};
    const std::string name = label.empty() ? runs_[run].name : fmt::format("{}, {}", runs_[run].name, label);
    return {name, run, run, dash, std::move(points)};
  }

  void add(Chart chart) {
    std::erase_if(chart.series, [](const Series& series) { return series.points.empty(); });
    if (chart.series.empty()) return;
    // In the first epoch the steps are all there is.
    const bool only_steps =
        std::all_of(chart.series.begin(), chart.series.end(), [](const Series& one) { return one.thin; });
    if (only_steps) {
      for (Series& one : chart.series) one.thin = false;
    }
    // Different names may have the same id.
    for (int i = 2; !ids_.insert(chart.id).second; ++i) chart.id = fmt::format("{}-{}", chart.id, i);
    charts_.push_back(std::move(chart));
  }

  // "train_loss", "val_loss" and "test_loss" in one chart.
  void add_phases(const std::string& base, const std::string& title) {
    Chart chart{.id = id_of(base), .title = title, .y_label = base};
    for (size_t run = 0; run < runs_.size(); ++run) {
      for (size_t i = 0; i < kPhases.size(); ++i) {
        const std::string column = std::string(kPhases[i].prefix) + base;
        used_.insert(column);
        chart.series.push_back(series(run, std::string(kPhases[i].label), i, kPhases[i].dash,
                                      runs_[run].metrics.points(column)));
      }
      add_steps(chart, run, base);
    }
    add(std::move(chart));
  }

  // The values of single steps, behind the means of their epochs. With one run in a colour of their own.
  void add_steps(Chart& chart, size_t run, const std::string& base) {
    const std::string column = std::string(kStepPrefix) + base;
    used_.insert(column);
    chart.series.push_back(
        series(run, "training steps", kStepColour, Dash::kSolid, runs_[run].metrics.points(column)));
    chart.series.back().thin = true;
  }

  std::vector<std::string> other_bases() const {
    std::vector<std::string> bases;
    for (const Run& run : runs_) {
      for (const std::string& column : run.metrics.names()) {
        const std::string base = base_of(column);
        if (base.empty() || used_.contains(column)) continue;
        if (std::find(bases.begin(), bases.end(), base) == bases.end()) bases.push_back(base);
      }
    }
    if (bases.size() > kMaxOtherCharts) bases.resize(kMaxOtherCharts);
    return bases;
  }

  void add_columns(const std::vector<std::string>& columns, const std::string& title,
                   const std::string& y_label, bool from_zero = false) {
    Chart chart{.id = id_of(columns.front()), .title = title, .y_label = y_label, .from_zero = from_zero};
    for (const std::string& column : columns) {
      used_.insert(column);
      for (size_t run = 0; run < runs_.size(); ++run) {
        chart.series.push_back(series(run, "", 0, Dash::kSolid, runs_[run].metrics.points(column)));
        if (one_run()) chart.series.back().label = y_label;
      }
    }
    add(std::move(chart));
  }

  // One run: over its steps. Several runs: the mean of each run.
  void add_step_parts() {
    Chart chart{.id = "step-time",
                .title = "Where a step's time goes",
                .y_label = "ms per step",
                .kind = one_run() ? Chart::Kind::kStack : Chart::Kind::kBars,
                .axis = one_run() ? Chart::Axis::kStep : Chart::Axis::kCategory,
                .from_zero = true};
    for (const Run& run : runs_) chart.categories.push_back(run.name);
    for (size_t i = 0; i < kStepParts.size(); ++i) {
      const std::string column = per_step_column(std::string(kStepParts[i].name));
      used_.insert(column);
      used_.insert(fmt::format("time_{}_s", kStepParts[i].name));
      Series part{.label = std::string(kStepParts[i].label), .run = 0, .colour = i, .points = {}};
      if (one_run()) part.points = runs_[0].metrics.means(column);
      for (size_t run = 0; !one_run() && run < runs_.size(); ++run) {
        const ThinnedTable::Totals* totals = runs_[run].metrics.totals(column);
        if (totals != nullptr) part.points.push_back({static_cast<double>(run), totals->mean()});
      }
      chart.series.push_back(std::move(part));
    }
    add(std::move(chart));
  }

  void add_gpus(const char* id, const char* title, const char* y_label,
                std::string (*column)(const std::string&)) {
    Chart chart{
        .id = id, .title = title, .y_label = y_label, .axis = Chart::Axis::kSeconds, .from_zero = true};
    for (size_t run = 0; run < runs_.size(); ++run) {
      size_t count = 0;
      for (const GpuLog& log : runs_[run].gpus) {
        for (const GpuLog::Gpu& gpu : log.gpus) {
          if (count == kMaxGpuLines) break;
          const std::string label = runs_[run].gpus.size() == 1
                                        ? fmt::format("GPU {}", gpu.index)
                                        : fmt::format("node {} GPU {}", log.node, gpu.index);
          const Dash dash = count == 0 ? Dash::kSolid : Dash::kDashed;
          chart.series.push_back(series(run, label, count++, dash, log.table.points(column(gpu.index))));
        }
      }
    }
    add(std::move(chart));
  }

  void remark_gpus() {
    for (const Run& run : runs_) {
      size_t count = 0;
      for (const GpuLog& log : run.gpus) count += log.gpus.size();
      if (count > kMaxGpuLines) {
        remarks_.push_back(
            fmt::format("{}: the first {} of {} GPUs are shown", run.name, kMaxGpuLines, count));
      }
    }
  }

  void add_others() {
    used_.insert("epoch");
    std::vector<std::string> others;
    for (const Run& run : runs_) {
      for (const std::string& column : run.metrics.names()) {
        if (is_per_step_column(column) || !used_.insert(column).second) continue;
        if (run.metrics.totals(column) != nullptr) others.push_back(column);
      }
    }
    for (size_t i = 0; i < std::min(others.size(), kMaxOtherCharts); ++i) {
      add_columns({others[i]}, title_of(others[i]), others[i]);
    }
    if (others.size() > kMaxOtherCharts) {
      remarks_.push_back(fmt::format("{} of {} further metrics have no chart",
                                     others.size() - kMaxOtherCharts, others.size()));
    }
  }

  const std::vector<Run>& runs_;
  std::vector<std::string>& remarks_;
  std::vector<Chart> charts_;
  std::set<std::string> used_;
  std::set<std::string> ids_;
};

}  // namespace

std::vector<Chart> charts_of(const std::vector<Run>& runs, std::vector<std::string>& remarks) {
  return ChartBuilder(runs, remarks).build();
}

}  // namespace lockstep::report
