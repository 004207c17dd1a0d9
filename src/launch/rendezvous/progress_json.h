#pragma once

#include <lockstep/json.h>
#include <vector>

#include "launch/stall.h"

namespace lockstep::launcher::wire {

// What ranks are doing, as JSON. from_* throw ProtocolError, to_* cut to what from_*
// takes. Of a node with more workers than this nothing is told.
inline constexpr size_t kMaxWorkers = 1024;
inline constexpr size_t kMaxReport = 16 << 10;
inline constexpr size_t kMaxMissing = 256;

// Without rank and host: their order says it.
Json to_json(const std::vector<RankView>& workers);
std::vector<RankView> workers_from(const Json& array);

// The report and the missing ranks.
Json to_json(const Stall& stall);
Stall stall_from(const Json& object);

}  // namespace lockstep::launcher::wire
