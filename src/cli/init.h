#pragma once

namespace lockstep::cli {

// `lockstep init DIR [--name NAME]`: writes a CMake project with a training program, a
// batch script and a README into a folder that is new or empty. argv[0] is "init". Returns
// the exit status; throws ConfigError, and HelpRequested.
int run_init(int argc, const char* const* argv);

}  // namespace lockstep::cli
