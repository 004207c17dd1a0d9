#pragma once

#include <string>
#include <vector>

#include "base/environment.h"
#include "launcher/job.h"

// How a worker is started: its program, arguments and environment.
namespace lockstep::launcher {

struct RunOptions;

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

// What to execute for `command`, a program or script and its arguments. Python is PYTHON_EXEC,
// else python3 of PATH, and runs unbuffered. ConfigError: nothing given, not found, not
// executable; it says where it looked and what to write instead.
WorkerCommand resolve_command(CommandKind kind, const std::vector<std::string>& command,
                              const base::Environment& environment);

// The whole environment of one worker: `ours`, plus its rank in torchrun's variables.
// error_file: where it may write a WorkerError.
base::Environment worker_environment(const base::Environment& ours, const RunOptions& options,
                                     const Generation& generation, int local_rank,
                                     const std::string& error_file);

// The prefix of a worker's lines: --log-line-prefix-template with ${role_name}, ${rank},
// ${local_rank} and ${hostname} replaced.
std::string line_prefix(const RunOptions& options, const Generation& generation, int local_rank);

}  // namespace lockstep::launcher
