#pragma once

#include <lockstep/rank_map.h>

#include <functional>
#include <map>
#include <optional>

#include "support/process.h"

namespace lockstep::test {

struct RankProcesses {
  int size = 1;
  Process::EnvironmentChanges environment = {};
  // Ranks that do not end with success, and how they end.
  std::map<int, ExitStatus> ends = {};
  // A rank that does not end by itself: it is killed once all others have ended.
  std::optional<int> stalled = {};
};

// Runs `body` as every rank of a job of processes: this program again, with the running test
// alone. In the test itself it waits for them, and adds a failure with their outputs where one
// of them does not end as expected; in the ranks it runs the body. Ranks meet in a file. Once a
// test.
void run_rank_processes(const RankProcesses& job, const std::function<void(const RankMap& map)>& body);
void run_rank_processes(int size, const std::function<void(const RankMap& map)>& body);

}  // namespace lockstep::test
