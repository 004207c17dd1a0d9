#pragma once

#include <lockstep/rank_map.h>

#include <functional>

namespace lockstep::test {

// Runs `body` as every rank of a job of `size` processes: this program again, with the
// running test alone. In the test itself it waits for them, and adds a failure with their
// outputs where one of them fails; in the ranks it runs the body. Ranks meet in a file.
// Once a test.
void run_rank_processes(int size, const std::function<void(const RankMap& map)>& body);

}  // namespace lockstep::test
