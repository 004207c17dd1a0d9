#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "base/process.h"

namespace lockstep::base {

// The executable that a shell with this environment's PATH would run; nullopt where
// there is none.
std::optional<std::string> find_program(std::string_view name, const Environment& environment);

struct ProgramResult {
  ExitState state;
  std::string output;  // standard output
  std::string errors;  // standard error
};

// Runs a program to its end and keeps what it wrote. nullopt: it did not end in time
// and was killed. Throws ConfigError when it cannot be executed. options.stdout_fd and
// stderr_fd are not read.
std::optional<ProgramResult> run_program(ProcessOptions options, std::chrono::milliseconds timeout);

}  // namespace lockstep::base
