#include <iterator>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cluster/devices.h"
#include "cluster/node_resources.h"
#include "launcher/agent/run_job.h"
#include "launcher/agent/run_options.h"
#include "launcher/agent/slurm_step.h"

namespace lockstep::cli {

// Starts the program once per rank, watches the ranks and ends or restarts them together.
int run_run(int argc, const char* const* argv) {
  const base::Environment environment = base::Environment::of_process();
  const launcher::MachineCounts machine{
      .cpus = cluster::usable_cpus(cluster::affinity_cpus().size(), cluster::cpu_quota()),
      .gpus = cluster::count_visible_gpus(environment),
  };
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const launcher::RunOptions options = launcher::parse_run_options(arguments, environment, machine);
  if (!options.print_completion.empty()) {
    const char* const words[] = {"lockstep", "completion", options.print_completion.c_str()};
    return run_command_line(static_cast<int>(std::size(words)), words);
  }
  // Nodes are usually alike, so only the first one prints hints about Slurm.
  if (!options.quiet) {
    for (const std::string& hint : options.hints) base::log_warning("run", "{}", hint);
  }
  if (!options.quiet && options.join.node_rank.value_or(0) == 0) {
    for (const std::string& problem : launcher::check_slurm_share(environment, options.local_world_size)) {
      base::log_warning("run", "{}", problem);
    }
  }
  return launcher::run_job(options);
}

}  // namespace lockstep::cli
