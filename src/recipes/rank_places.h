#pragma once

#include <memory>
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

namespace lockstep {
class Callback;
}

namespace lockstep::recipes {

// Logs how busy the job's GPUs are while a training runs: the first rank on a GPU adds its
// lines to gpu.csv in the run folder (see track/gpu_monitor.h), on further nodes to
// gpu_node1.csv and so on. A rank may see no GPU but its own, so each one asks for that.
// Two callbacks: it starts and it stops.
struct GpuLog {
  GpuLog();

  std::shared_ptr<Callback> start;
  std::shared_ptr<Callback> stop;
};

}  // namespace lockstep::recipes
