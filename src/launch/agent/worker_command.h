#pragma once

#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::launcher {

enum class CommandKind {
  kDetect,   // NAME.py under Python, anything else is executed
  kExecute,  // --no-python
  kModule,   // -m: python -u -m NAME
  kScript,   // --run-path: under Python, whatever its name
};

struct WorkerCommand {
  std::string program;                 // a path that can be executed
  std::vector<std::string> arguments;  // argv, argv[0] included
};

// What to execute for `command`, a program or script and its arguments. Python is
// PYTHON_EXEC, else python3 of PATH, and runs unbuffered. ConfigError: nothing given,
// not found, not executable; it says where it looked and what to write instead.
WorkerCommand resolve_command(CommandKind kind, const std::vector<std::string>& command,
                              const base::Environment& environment);

}  // namespace lockstep::launcher
