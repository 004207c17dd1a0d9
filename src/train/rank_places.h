#pragma once

#include <lockstep/launch.h>

#include <span>
#include <string>
#include <vector>

namespace lockstep::train {

// Where a rank runs. The UUID identifies a GPU: its CUDA index is 0 on every rank if each rank sees
// only its own GPU.
struct RankPlace {
  std::string node;
  std::string gpu_uuid;  // "" on the CPU
};

// The place of this rank. ConfigError: it trains on a GPU and the CUDA library does not load.
RankPlace own_place(const World& world);
// The places of all ranks, in rank order. Every rank calls it. Blocks. ConfigError as above.
std::vector<RankPlace> gather_places(const World& world);

// job_shape() of ranks in these places.
JobShape shape_of(std::span<const RankPlace> ranks);

// Whether this rank trains on a GPU that no rank before it trains on.
bool is_first_on_gpu(std::span<const RankPlace> ranks, int rank);

}  // namespace lockstep::train
