#pragma once

#include "recipes/printed_lines.h"

namespace lockstep {
class World;
}

namespace lockstep::recipes {

// Counts nodes and GPUs of all ranks: ranks that share a GPU count it once. Every rank
// calls it. Blocks.
JobShape job_shape(const World& world);

}  // namespace lockstep::recipes
