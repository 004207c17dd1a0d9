#include "report/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace lockstep::report {
namespace {

using Totals = ThinnedTable::Totals;

// " (epoch 7)" of a step, where each row has its epoch: the rows of a step and of its epoch
// are the same, so that the rule of three is exact for equal epochs and close for others.
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
