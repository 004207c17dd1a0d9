#pragma once

namespace lockstep::cli {

// `lockstep run [flags] program arguments`: starts the program once a rank, watches
// the ranks and ends or restarts them together. argv[0] is "run". Returns the job's
// exit status. Throws HelpRequested, and ConfigError for bad flags.
int run_run(int argc, const char* const* argv);

}  // namespace lockstep::cli
