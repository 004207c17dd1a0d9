#pragma once

#include <lockstep/communicator.h>

#include <lockstep/json.h>
#include <functional>
#include <vector>

namespace lockstep::engine {

// What the work of a rank came to, told to all ranks, so that nobody waits for one that has
// failed: {"result": ...}, or {"error": "what it threw"}.
using RankWork = std::function<Json()>;

// Rank 0 works. Collective.
Json outcome_of_main_rank(const Communicator& group, const RankWork& work);
// Every rank works; in the order of the ranks. Collective.
std::vector<Json> outcomes_of_all_ranks(const Communicator& group, const RankWork& work);

}  // namespace lockstep::engine
