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

// A job that does not move: ranks wait in a collective for others that do not come.
struct Stall {
  std::vector<int> waiting;  // ranks
  std::vector<int> missing;  // those that have started fewer collectives than the rest
  // Several lines for a person, each ended.
  std::string report;
};

// Whether none of these ranks has moved for that long, as far as they tell.
bool all_quiet(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout);

// ranks: all of the job, in their order. nullopt: no rank has waited for that long
// while nobody moved, or none of them tells. Pure.
std::optional<Stall> find_stall(const std::vector<RankView>& ranks, std::chrono::milliseconds timeout);

}  // namespace lockstep::launcher
