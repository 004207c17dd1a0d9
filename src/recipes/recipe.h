#pragma once

#include <span>
#include <string>

namespace lockstep::recipes {

// A whole training that `lockstep train NAME` runs: data, model, optimizer, printed lines.
struct Recipe {
  const char* name;
  const char* description;
  // The flags that matter most with the values they have when they are left out.
  std::string (*defaults)();
  // Reads the flags, joins or starts the ranks, trains, and returns the exit status.
  // argv[0] is the command as the user wrote it. Throws ConfigError and HelpRequested.
  int (*run)(int argc, const char* const* argv);
};

// In the order in which they are listed.
std::span<const Recipe> all_recipes();

// ConfigError names the recipes there are and the one that was probably meant.
const Recipe& find_recipe(const std::string& name);

}  // namespace lockstep::recipes
