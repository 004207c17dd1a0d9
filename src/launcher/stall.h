#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"

namespace lockstep::launcher {

// One rank as a stall report sees it.
struct RankView {
  int rank = 0;
  std::string host;
  bool ended = false;
  base::ProgressWatch::Snapshot progress;
};

// A job that does not progress: ranks wait in a collective for others that do not arrive.
struct Stall {
  std::vector<int> waiting;  // ranks
  std::vector<int> missing;  // those that have started fewer collectives than the rest
  // Several lines for the user, each with its newline.
  std::string report;
};

// Whether none of these ranks has progressed for that long, as far as they report progress.
bool all_idle(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout);

// ranks: all ranks of the job, in their order. nullopt: some rank has progressed within that
// time, no rank waits, or none of them reports progress. Pure.
std::optional<Stall> find_stall(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout);

}  // namespace lockstep::launcher
