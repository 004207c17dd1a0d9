#pragma once

namespace lockstep::cli {

// `lockstep train RECIPE [flags]`; without a recipe it lists them. argv[0] is "train".
// Returns the exit status; throws ConfigError and HelpRequested.
int run_train(int argc, const char* const* argv);

}  // namespace lockstep::cli
