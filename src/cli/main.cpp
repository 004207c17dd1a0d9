// The command `lockstep`. It starts in a millisecond because it links no LibTorch:
// the commands that need tensors are in lockstep-tensor beside it.

#include <fcntl.h>
#include <lockstep/error.h>
#include <lockstep/version.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/process.h"
#include "cli/bench_scaling.h"
#include "cli/init.h"
#include "cli/report.h"
#include "cli/run.h"
#include "cli/slurm.h"

namespace {

constexpr char kUsage[] =
    "Distributed training for C++.\n"
    "\n"
    "  lockstep run                 start a program once a rank, on one node or several\n"
    "  lockstep train               train a model by a recipe: mnist, cifar100, ...\n"
    "  lockstep init                a new project: program, batch script, README\n"
    "  lockstep slurm               a batch script for a Slurm cluster, printed or submitted\n"
    "  lockstep doctor              what this machine and this allocation can do\n"
    "  lockstep bench collectives   time and bandwidth of collectives\n"
    "  lockstep bench data          images a second from bytes to batches\n"
    "  lockstep bench scaling       a training with several numbers of ranks and CPUs\n"
    "  lockstep plan                what training a model takes of each rank, stage by stage\n"
    "  lockstep ckpt                checkpoints: list, inspect, verify, export, import, compare\n"
    "  lockstep report              a page about runs: loss, accuracy, speed, configuration\n"
    "  lockstep --version\n"
    "\n"
    "lockstep COMMAND --help tells more.\n";

struct Command {
  std::string_view name;
  int (*run)(int argc, const char* const* argv);  // argv[0] is the name
};

constexpr Command kCommands[] = {
    {"init", lockstep::cli::run_init},
    {"report", lockstep::cli::run_report},
    {"run", lockstep::cli::run_run},
    {"slurm", lockstep::cli::run_slurm},
};

int run_command(const Command& command, int argc, char** argv) {
  try {
    return command.run(argc - 1, argv + 1);
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

bool needs_tensors(std::string_view command) {
  return command == "doctor" || command == "bench" || command == "ckpt" || command == "plan" ||
         command == "train";
}

int run_tensor_command(char** argv) {
  const std::filesystem::path program =
      std::filesystem::path(lockstep::base::own_executable()).replace_filename("lockstep-tensor");
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "[cli] cannot execute '%s': %s\n", program.c_str(), std::strerror(errno));
  return lockstep::kExitUsage;
}

// A descriptor that was closed would be given to the next file or socket, which then
// gets what is meant for a person.
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
  const std::string_view command = argc > 1 ? argv[1] : "--help";
  // It only starts trainings and reads what they leave.
  if (command == "bench" && argc > 2 && std::string_view(argv[2]) == "scaling") {
    return run_command({"scaling", lockstep::cli::run_bench_scaling}, argc - 1, argv + 1);
  }
  if (needs_tensors(command)) return run_tensor_command(argv);
  for (const Command& known : kCommands) {
    if (command == known.name) return run_command(known, argc, argv);
  }
  if (command == "--version") {
    std::printf("lockstep %s\n", lockstep::kVersion);
    return 0;
  }
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::fprintf(stderr, "[cli] unknown command: '%s'\n%s", argv[1], kUsage);
  return lockstep::kExitUsage;
}
