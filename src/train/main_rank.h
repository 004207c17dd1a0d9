#pragma once

#include <lockstep/error.h>

#include <chrono>
#include <functional>
#include <string>

namespace lockstep {
class World;
}

namespace lockstep::train {

// An error of the whole job: every rank has thrown one by now.
class AgreedError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// One that another rank reports: this one ends with the same status, and says nothing.
class SaidElsewhere : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

// Runs `work` on rank 0 and gives its answer to all ranks. What it throws becomes an
// AgreedError on all of them, so that nobody waits for a rank that has failed: on the
// others SaidElsewhere. Blocks.
std::string on_main_rank(const World& world, const std::function<std::string()>& work);

// Runs `work` on every rank. Where it throws a ConfigError on some of them, all ranks throw:
// the first of those an AgreedError that says the same, the others SaidElsewhere. Blocks.
// For what may be wrong on some nodes only: those that have nothing to say end at once.
void on_every_rank(const World& world, const std::function<void()>& work);

// Throws the error by which this rank ends. Where all ranks end so, each text is left to the
// first rank that has it, and the others throw SaidElsewhere. Waits for the others at most
// `patience`.
[[noreturn]] void throw_once(const World& world, const ConfigError& error,
                             std::chrono::milliseconds patience = std::chrono::seconds(5));

// Whether some rank says so; all ranks ask, and all get the same answer. Blocks.
bool any_rank(const World& world, bool flag);

}  // namespace lockstep::train
