#pragma once

#include <span>
#include <string>
#include <vector>

#include "recipes/printed_lines.h"

namespace lockstep {
class World;
}

namespace lockstep::recipes {

// Where a rank runs. A GPU is known by its UUID: its CUDA index is 0 on every rank where
// each of them sees its own GPU alone.
struct RankPlace {
  std::string node;
  std::string gpu_uuid;  // "" on the CPU
};

// Of all ranks, in their order. Every rank calls it. Blocks. ConfigError: this rank trains
// on a GPU and the CUDA library does not load.
std::vector<RankPlace> gather_places(const World& world);
// Of this rank alone.
RankPlace own_place(const World& world);

// Counts nodes and GPUs: ranks that share a GPU count it once.
JobShape job_shape(std::span<const RankPlace> ranks);

// Whether this rank trains on a GPU that no rank before it trains on.
bool is_first_on_gpu(std::span<const RankPlace> ranks, int rank);

}  // namespace lockstep::recipes
