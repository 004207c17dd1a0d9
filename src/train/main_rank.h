#pragma once

#include <lockstep/error.h>

#include <functional>
#include <string>

namespace lockstep {
class World;
}

namespace lockstep::train {

// An error that another rank reports: this one ends with the same status, and says nothing.
class SaidElsewhere : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Runs `work` on rank 0 and gives its answer to all ranks. What it throws becomes a
// ConfigError on all of them, so that nobody waits for a rank that has failed: on the
// others SaidElsewhere. Blocks.
std::string on_main_rank(const World& world, const std::function<std::string()>& work);

// Runs `work` on every rank. Where it throws a ConfigError on some of them, all ranks throw:
// the first of those what it was, the others SaidElsewhere. Blocks.
void on_every_rank(const World& world, const std::function<void()>& work);

// Whether some rank says so; all ranks ask, and all get the same answer. Blocks.
bool any_rank(const World& world, bool flag);

}  // namespace lockstep::train
