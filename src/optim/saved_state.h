#pragma once

#include <fmt/format.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <string_view>

namespace lockstep::optim {

// Runs a function that reads a saved state; what it does not find there, or finds as
// something else, becomes a ConfigError.
template <typename Read>
void read_saved(std::string_view what, Read read) {
  try {
    read();
  } catch (const JsonError& error) {
    throw ConfigError("optim", fmt::format("the saved state of {} cannot be read: {}", what, error.what()));
  }
}

}  // namespace lockstep::optim
