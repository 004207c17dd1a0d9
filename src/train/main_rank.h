#pragma once

#include <functional>
#include <string>

namespace lockstep {
class World;
}

namespace lockstep::train {

// Runs `work` on rank 0 and gives its answer to all ranks. What it throws becomes a
// ConfigError on all of them, so that nobody waits for a rank that has failed. Blocks.
std::string on_main_rank(const World& world, const std::function<std::string()>& work);

// Whether some rank says so; all ranks ask, and all get the same answer. Blocks.
bool any_rank(const World& world, bool flag);

}  // namespace lockstep::train
