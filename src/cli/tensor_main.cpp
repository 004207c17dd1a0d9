// The commands of `lockstep` that need LibTorch.

#include <lockstep/launch.h>

#include <CLI/CLI.hpp>
#include <string_view>

#include "cli/bench_collectives.h"
#include "cli/bench_data.h"
#include "cli/ckpt.h"
#include "cli/doctor.h"
#include "cli/plan.h"
#include "cli/train.h"
#include "config/flag_words.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    // A recipe has a table of options of its own.
    if (argc > 1 && std::string_view(argv[1]) == "train") return lockstep::cli::run_train(argc - 1, argv + 1);
    CLI::App app("Distributed training for C++.", "lockstep");
    app.require_subcommand(1);
    int status = lockstep::kExitSuccess;
    lockstep::cli::add_doctor(app, &status);
    lockstep::cli::add_ckpt(app, &status);
    lockstep::cli::add_plan(app, &status);
    CLI::App* bench = app.add_subcommand("bench", "measure");
    bench->require_subcommand(1);
    lockstep::cli::add_bench_collectives(*bench, &status);
    lockstep::cli::add_bench_data(*bench, &status);
    bench->footer("\nlockstep bench scaling compares numbers of ranks and CPUs: see its --help.");
    try {
      lockstep::config::parse_words(app, {argv + 1, argv + argc});
    } catch (const CLI::ParseError& error) {
      const int code = app.exit(error);
      return code == 0 ? lockstep::kExitSuccess : lockstep::kExitUsage;
    }
    return status;
  });
}
