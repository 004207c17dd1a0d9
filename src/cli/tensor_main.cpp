// The program that links all commands of `lockstep`, and LibTorch. `lockstep` executes it for the commands
// that need LibTorch.

#include <lockstep/launch.h>

#include "cli/commands.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return lockstep::cli::run_command_line(argc, argv); });
}
