#pragma once

#include <lockstep/error.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "cluster/slurm_notation.h"
#include "support/fuzz/core/node_list.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

inline bool takes_counts(std::string_view bytes) {
  try {
    const std::vector<int> counts = cluster::expand_counts(first_line(bytes), "COUNTS");
    require(!counts.empty() && counts.size() <= static_cast<size_t>(cluster::kMaxHosts),
            "1 to kMaxHosts counts");
    require(std::all_of(counts.begin(), counts.end(), [](int count) { return count >= 1; }), "counts from 1");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
