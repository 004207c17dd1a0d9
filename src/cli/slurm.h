#pragma once

namespace lockstep::cli {

// `lockstep slurm [flags] -- program arguments`: prints a batch script for the program,
// or submits it. argv[0] is the command's name. Throws ConfigError and HelpRequested.
int run_slurm(int argc, const char* const* argv);

}  // namespace lockstep::cli
