#include "launcher/stall.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace lockstep::launcher {
namespace {

using Snapshot = base::ProgressWatch::Snapshot;

// The report of a large job lists only so many ranks.
constexpr size_t kMaxLines = 32;

std::string position(const Snapshot& progress) {
  if (progress.step < 0) return base::to_string(progress.phase);
  return fmt::format("step {}, {}", progress.step, base::to_string(progress.phase));
}

int64_t seconds_of(int64_t ns) { return (ns + 500'000'000) / 1'000'000'000; }

// "0-3,7"
std::string numbers(const std::vector<const RankView*>& views) {
  std::string text;
  for (size_t i = 0; i < views.size();) {
    size_t end = i + 1;
    while (end < views.size() && views[end]->rank == views[end - 1]->rank + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", views[i]->rank);
    if (end - i > 1) text += fmt::format("-{}", views[end - 1]->rank);
    i = end;
  }
  return text;
}

// "rank 3", with its host unless all ranks are on one host.
std::string name(const RankView& view, bool several_hosts) {
  return several_hosts ? fmt::format("rank {} on {}", view.rank, view.host)
                       : fmt::format("rank {}", view.rank);
}

// Ranks that wait in the same collective at the same place.
std::string describe_waiting(const std::vector<const RankView*>& group, bool several_hosts) {
  const RankView& first = *group.front();
  const auto [least, most] = std::minmax_element(
      group.begin(), group.end(),
      [](const RankView* a, const RankView* b) { return a->progress.idle_ns < b->progress.idle_ns; });
  const int64_t from = seconds_of((*least)->progress.idle_ns), to = seconds_of((*most)->progress.idle_ns);
  const bool one = group.size() == 1;
  return fmt::format("  {} in {} ({} collective number {}; {}) for {} s\n",
                     one ? name(first, several_hosts) + " waits" : "ranks " + numbers(group) + " wait",
                     first.progress.operation, one ? "its" : "their", first.progress.collectives_started,
                     position(first.progress),
                     from == to ? std::to_string(from) : fmt::format("{} to {}", from, to));
}

std::string describe_missing(const RankView& view, bool several_hosts) {
  const std::string who = name(view, several_hosts);
  if (view.ended) return fmt::format("  {} has ended\n", who);
  if (!view.progress.reports) return fmt::format("  {} has not reported anything yet\n", who);
  const std::string last = view.progress.collectives_started == 0
                               ? "it has started no collective"
                               : fmt::format("its last collective was number {}, {}",
                                             view.progress.collectives_started, view.progress.operation);
  return fmt::format("  {} has not arrived: {}; {}; no change for {} s\n", who, last, position(view.progress),
                     seconds_of(view.progress.idle_ns));
}

void append_some(std::string& report, const std::vector<std::string>& lines) {
  for (size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) report += lines[i];
  if (lines.size() > kMaxLines) report += fmt::format("  and {} more\n", lines.size() - kMaxLines);
}

std::string describe(const std::vector<const RankView*>& waiting, const std::vector<const RankView*>& missing,
                     bool several_hosts) {
  using Place = std::tuple<uint64_t, std::string, std::string>;
  std::map<Place, std::vector<const RankView*>> groups;
  for (const RankView* view : waiting) {
    const Snapshot& progress = view->progress;
    groups[{progress.collectives_started, progress.operation, position(progress)}].push_back(view);
  }
  std::vector<std::string> lines;
  for (const auto& [place, group] : groups) lines.push_back(describe_waiting(group, several_hosts));
  std::string report;
  append_some(report, lines);
  lines.clear();
  for (const RankView* view : missing) lines.push_back(describe_missing(*view, several_hosts));
  append_some(report, lines);
  if (missing.empty()) report += "  all ranks have arrived; the transport makes no progress\n";
  return report;
}

}  // namespace

bool all_idle(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout) {
  const int64_t limit_ns = std::chrono::nanoseconds(timeout).count();
  return std::all_of(ranks.begin(), ranks.end(), [limit_ns](const RankView& view) {
    return view.ended || !view.progress.reports || view.progress.idle_ns >= limit_ns;
  });
}

std::optional<Stall> find_stall(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout) {
  // While any rank progresses, the others may wait for a good reason.
  if (!all_idle(ranks, timeout)) return std::nullopt;
  uint64_t furthest = 0;
  bool several_hosts = false;
  Stall stall;
  for (const RankView& view : ranks) {
    several_hosts |= view.host != ranks.front().host;
    if (view.ended) continue;
    furthest = std::max(furthest, view.progress.collectives_started);
    if (view.progress.waits()) stall.waiting.push_back(view.rank);
  }
  if (stall.waiting.empty()) return std::nullopt;
  std::vector<const RankView*> waiting, missing;
  for (const RankView& view : ranks) {
    if (!view.progress.reports || view.progress.collectives_started < furthest) {
      missing.push_back(&view);
      stall.missing.push_back(view.rank);
    } else if (view.progress.waits() && !view.ended) {
      waiting.push_back(&view);
    }
  }
  stall.report = fmt::format("no rank has moved for {} s:\n", timeout.count() / 1000) +
                 describe(waiting, missing, several_hosts);
  return stall;
}

}  // namespace lockstep::launcher
