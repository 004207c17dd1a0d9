#include "cli/slurm.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/process.h"
#include "config/flag_words.h"
#include "launcher/slurm/sbatch_script.h"
#include "launcher/slurm/submission.h"

namespace lockstep::cli {
namespace {

using launcher::SbatchRequest;
using launcher::SlurmStyle;

struct SlurmOptions {
  SbatchRequest request;
  std::string style = "torchrun";
  std::string version;
  bool submit = false;
  bool wait = false;
  bool test_only = false;
};

// A flag that is given must say something: "" would read as "not given".
void add_text(CLI::App& app, const std::string& flag, std::string& field, const std::string& help) {
  app.add_option_function<std::string>(
      flag,
      [flag, &field](const std::string& value) {
        if (value.empty()) throw ConfigError("slurm", fmt::format("{} must not be empty", flag));
        field = value;
      },
      help);
}

template <typename Count>
void add_count(CLI::App& app, const std::string& flag, Count& field, const std::string& help) {
  app.add_option_function<std::string>(
         flag, [flag, &field](const std::string& value) { field = launcher::parse_count(flag, value); }, help)
      ->type_name("NUMBER");
}

void add_resources(CLI::App& app, SbatchRequest& request) {
  add_count(app, "--nodes", request.nodes, "nodes; left out: one");
  add_text(app, "--gpus-per-node", request.gpus_per_node, "GPUs of each node: 4 or a100:4");
  add_count(app, "--ntasks-per-node", request.ntasks_per_node,
            "ranks of each node; left out: one a GPU, else one");
  add_count(app, "--cpus-per-task", request.cpus_per_task, "CPUs of each rank");
  add_text(app, "--mem", request.mem, "memory of each node: 64G; 0 is all of it");
  add_text(app, "--time", request.time, "time limit: 90, 1:30:00, 2-12");
  add_text(app, "--partition", request.partition, "partition");
  add_text(app, "--account", request.account, "account");
  add_text(app, "--array", request.array, "job array: 0-15, 1,3,5-9:2, 0-99%4");
}

void add_behaviour(CLI::App& app, SlurmOptions& options) {
  SbatchRequest& request = options.request;
  add_text(app, "--job-name", request.job_name, "name; left out: the program's");
  add_text(app, "--output", request.output, "log file; left out: NAME-JOB.out");
  add_text(app, "--container", request.container, "image in which apptainer or singularity runs the program");
  app.add_option("--module", request.modules, "module to load; may be repeated")->allow_extra_args(false);
  app.add_flag("--requeue", request.requeue,
               fmt::format("queue the job again when the program leaves with {}", kExitPreempted));
  add_text(app, "--signal", request.signal, "signal to the ranks before the time is up: USR1@120");
  app.add_option(
         "--style", options.style,
         "torchrun: `lockstep run` on each node; srun: one task a rank; spawn: the program starts its ranks")
      ->check(CLI::IsMember({"torchrun", "srun", "spawn"}))
      ->capture_default_str();
  app.add_option("--slurm-version", options.version,
                 "write for this Slurm: 23.11; left out: the one that is here");
  app.add_flag("--submit", options.submit, "submit the script and print the job's id");
  app.add_flag("--wait", options.wait,
               "with --submit: show the log until the job ends, exit with its status");
  app.add_flag("--test-only", options.test_only, "let sbatch check the script and say when it would start");
}

SlurmStyle style_of(const std::string& name) {
  const std::map<std::string, SlurmStyle> styles{
      {"torchrun", SlurmStyle::kTorchrun}, {"srun", SlurmStyle::kSrun}, {"spawn", SlurmStyle::kSpawn}};
  return styles.at(name);
}

void check_modes(const SlurmOptions& options) {
  if (options.wait && !options.submit)
    throw ConfigError("slurm", "--wait has no effect without --submit: add --submit, or leave out --wait");
  if (options.test_only && options.submit) {
    throw ConfigError("slurm", "--test-only submits nothing: leave out --test-only or --submit");
  }
}

void choose_version(SlurmOptions& options, const base::Environment& environment) {
  if (options.version.empty()) {
    options.request.version = launcher::installed_slurm_version(environment);
    return;
  }
  options.request.version = launcher::parse_slurm_version(options.version);
  if (!options.request.version) {
    throw ConfigError("slurm",
                      fmt::format("--slurm-version must be YEAR.MONTH as 23.11: '{}'", options.version));
  }
}

// Reads the flags and returns what follows them.
std::vector<std::string> parse_flags(CLI::App& app, const std::vector<std::string>& words) {
  app.prefix_command();
  try {
    config::parse_words(app, words);
  } catch (const CLI::CallForHelp&) {
    throw HelpRequested(app.help());
  } catch (const CLI::ParseError& error) {
    throw ConfigError("slurm", fmt::format("{}; lockstep slurm --help lists the flags", error.what()));
  }
  return app.remaining();
}

// Flags end at "--" or at the first word that is none; what follows is the program's.
SlurmOptions parse_slurm(int argc, const char* const* argv) {
  SlurmOptions options;
  CLI::App app("Prints a batch script that runs a program on a Slurm cluster, or submits it.",
               "lockstep slurm");
  app.footer("\nlockstep slurm --nodes 2 --gpus-per-node 4 --time 1:00:00 -- ./train --lr 0.1");
  add_resources(app, options.request);
  add_behaviour(app, options);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  std::vector<std::string> command = parse_flags(app, {words.begin(), dashes});
  if (!command.empty() && command.front().substr(0, 1) == "-") {
    throw ConfigError("slurm",
                      fmt::format("unknown flag, lockstep slurm --help lists them: '{}'", command.front()));
  }
  // A program that was found without "--" may have one among its own arguments.
  const auto rest = command.empty() && dashes != words.end() ? dashes + 1 : dashes;
  command.insert(command.end(), rest, words.end());
  options.request.command = std::move(command);
  options.request.style = style_of(options.style);
  return options;
}

}  // namespace

int run_slurm(int argc, const char* const* argv) {
  SlurmOptions options = parse_slurm(argc, argv);
  check_modes(options);
  const base::Environment environment = base::Environment::of_process();
  choose_version(options, environment);
  options.request.launcher = base::own_executable();
  const std::string script = launcher::sbatch_script(options.request);
  if (options.test_only) {
    std::fputs(launcher::test_script(script, environment).c_str(), stdout);
    return kExitSuccess;
  }
  if (!options.submit) {
    std::fputs(script.c_str(), stdout);
    return kExitSuccess;
  }
  const std::string job_id = launcher::submit_script(script, environment);
  fmt::print("{}\n", job_id);
  std::fflush(stdout);
  return options.wait ? launcher::follow_job(job_id, environment) : kExitSuccess;
}

}  // namespace lockstep::cli
