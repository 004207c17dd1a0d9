#include "cli/run.h"

#include <string>
#include <vector>

#include "base/environment.h"
#include "cluster/devices.h"
#include "cluster/topology.h"
#include "launch/agent/run_job.h"
#include "launch/agent/run_options.h"

namespace lockstep::cli {

int run_run(int argc, const char* const* argv) {
  const base::Environment environment = base::Environment::of_process();
  const launcher::MachineCounts machine{
      .cpus = cluster::usable_cpus(cluster::affinity_cpus().size(), cluster::cpu_quota()),
      .gpus = cluster::count_visible_gpus(environment),
  };
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return launcher::run_job(launcher::parse_run_options(arguments, environment, machine));
}

}  // namespace lockstep::cli
