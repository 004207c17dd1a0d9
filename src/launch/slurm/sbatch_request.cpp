#include "launch/slurm/sbatch_request.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include "launch/slurm/sbatch_values.h"

namespace lockstep::launcher {
namespace {

void check_texts(const SbatchRequest& request) {
  using Check = void (*)(std::string_view, const std::string&);
  struct Rule {
    const char* flag;
    const std::string& value;
    Check check;
  };
  const Rule rules[] = {
      {"--mem", request.mem, check_memory},           {"--time", request.time, check_time},
      {"--partition", request.partition, check_name}, {"--account", request.account, check_name},
      {"--array", request.array, check_array},        {"--job-name", request.job_name, check_line},
      {"--output", request.output, check_line},       {"--signal", request.signal, check_signal},
      {"--container", request.container, check_line}};
  for (const Rule& rule : rules) {
    if (!rule.value.empty()) rule.check(rule.flag, rule.value);
  }
  // The file is named after the job, and Slurm makes no folders.
  if (request.output.empty() && request.job_name.find('/') != std::string::npos) {
    throw ConfigError("slurm",
                      fmt::format("--job-name must hold no '/' unless --output says where the log goes: '{}'",
                                  request.job_name));
  }
  for (const std::string& module : request.modules) check_name("--module", module);
}

void check_command(const SbatchRequest& request) {
  if (request.command.empty() || request.command.front().empty()) {
    throw ConfigError("slurm", "the program is missing: lockstep slurm [flags] -- PROGRAM ARGUMENTS");
  }
  if (request.command.front().front() == '-') {
    throw ConfigError("slurm", fmt::format("the program must not begin with a dash, write it as ./{}: '{}'",
                                           request.command.front(), request.command.front()));
  }
}

}  // namespace

int SbatchRequest::ranks_per_node() const {
  if (ntasks_per_node) return *ntasks_per_node;
  return gpus_per_node.empty() ? 1 : parse_gpus("--gpus-per-node", gpus_per_node);
}

void check_request(const SbatchRequest& request) {
  check_command(request);
  check_count("--nodes", request.nodes);
  if (request.ntasks_per_node) check_count("--ntasks-per-node", *request.ntasks_per_node);
  if (request.cpus_per_task) check_count("--cpus-per-task", *request.cpus_per_task);
  check_texts(request);
  if (request.gpus_per_node.empty()) return;
  const int gpus = parse_gpus("--gpus-per-node", request.gpus_per_node);
  if (request.ranks_per_node() > gpus) {
    throw ConfigError("slurm",
                      fmt::format("two ranks would share one GPU, ask for --gpus-per-node={}: "
                                  "--ntasks-per-node={}, --gpus-per-node={}",
                                  request.ranks_per_node(), request.ranks_per_node(), request.gpus_per_node));
  }
}

}  // namespace lockstep::launcher
