#include "launch/agent/stall_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::launcher {
namespace {

using Snapshot = base::ProgressWatch::Snapshot;

std::string position(const Snapshot& progress) {
  if (progress.step < 0) return base::to_string(progress.phase);
  return fmt::format("step {}, {}", progress.step, base::to_string(progress.phase));
}

std::string describe_waiting(const RankView& view) {
  return fmt::format("  rank {} waits in {} (its collective number {}; {}) for {:.0f} s\n", view.rank,
                     view.progress.operation, view.progress.collectives_started, position(view.progress),
                     static_cast<double>(view.progress.idle_ns) / 1e9);
}

std::string describe_missing(const RankView& view) {
  if (view.ended) return fmt::format("  rank {} has ended\n", view.rank);
  if (!view.progress.told) return fmt::format("  rank {} has not said anything yet\n", view.rank);
  const std::string last = view.progress.collectives_started == 0
                               ? "it has started no collective"
                               : fmt::format("its last collective was number {}, {}",
                                             view.progress.collectives_started, view.progress.operation);
  return fmt::format("  rank {} has not arrived: {}; {}; no change for {:.0f} s\n", view.rank, last,
                     position(view.progress), static_cast<double>(view.progress.idle_ns) / 1e9);
}

}  // namespace

std::optional<Stall> find_stall(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout) {
  const int64_t limit_ns = std::chrono::nanoseconds(timeout).count();
  uint64_t furthest = 0;
  Stall stall;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankView& view = ranks[i];
    if (view.ended) continue;
    // Where anybody moves, others may wait with reason.
    if (view.progress.told && view.progress.idle_ns < limit_ns) return std::nullopt;
    furthest = std::max(furthest, view.progress.collectives_started);
    if (view.progress.waits()) stall.waiting.push_back(static_cast<int>(i));
  }
  if (stall.waiting.empty()) return std::nullopt;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].progress.told || ranks[i].progress.collectives_started < furthest) {
      stall.missing.push_back(static_cast<int>(i));
    }
  }
  stall.report = fmt::format("[run] no rank has moved for {} s:\n", timeout.count() / 1000);
  for (const int i : stall.waiting) {
    if (std::find(stall.missing.begin(), stall.missing.end(), i) == stall.missing.end()) {
      stall.report += describe_waiting(ranks[i]);
    }
  }
  for (const int i : stall.missing) stall.report += describe_missing(ranks[i]);
  if (stall.missing.empty())
    stall.report += "  all ranks of this node have arrived; another node's has not\n";
  return stall;
}

}  // namespace lockstep::launcher
