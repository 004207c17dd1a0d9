// The command `lockstep`. It starts in a millisecond because it links no LibTorch:
// the commands that need tensors are in lockstep-tensor (cli/installation.h).

#include <fcntl.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <cstdio>

#include "cli/commands.h"

namespace {

// The next file or socket would get the number of a closed standard stream, and then the text that is
// meant for the terminal.
void open_closed_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    ::close(fd);
    return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  try {
    return lockstep::cli::run_command_line(argc, argv);
  } catch (const lockstep::HelpRequested& help) {
    std::fputs(help.what(), stdout);
    return lockstep::kExitSuccess;
  } catch (const lockstep::ConfigError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return lockstep::kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return lockstep::kExitInternal;
  }
}
