#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/commands.h"
#include "launcher/slurm/sbatch_script.h"
#include "launcher/slurm/submission.h"

namespace lockstep::cli {
namespace {

using launcher::SbatchRequest;
using launcher::SlurmStyle;

struct SlurmOptions {
  SbatchRequest request;
  // Counts as the user writes them; empty: left out.
  std::string nodes;
  std::string ntasks_per_node;
  std::string cpus_per_task;
  std::string gpu_vendor;
  std::string style = "torchrun";
  std::string version;
  bool submit = false;
  bool wait = false;
  bool test_only = false;
};

config::OptionTable options_of(SlurmOptions& options) {
  SbatchRequest& request = options.request;
  config::OptionTable table(
      "Prints a batch script that runs a program on a Slurm cluster, or submits it.\n"
      "\n"
      "  lockstep slurm --nodes 2 --gpus-per-node 4 --time 1:00:00 -- ./train --lr 0.1",
      config::kNoVariables);
  table.add("nodes", options.nodes, "nodes; left out: one")
      .add("gpus_per_node", request.gpus_per_node, "GPUs of each node: 4 or a100:4")
      .add("gpus", request.gpus, "GPUs of all nodes together: 8 or a100:8")
      .add("gres", request.gres, "generic resources of each node: gpu:2 or gpu:a100:2,nvme:1")
      .add("gpu_vendor", options.gpu_vendor,
           "whose GPUs; with --container, amd passes --rocm and nvidia --nv; left out: nvidia",
           {.choices = {"", "nvidia", "amd"}})
      .add("ntasks_per_node", options.ntasks_per_node, "ranks of each node; left out: one per GPU, else one")
      .add("cpus_per_task", options.cpus_per_task, "CPUs of each rank")
      .add("mem", request.mem, "memory of each node: 64G; 0 is all of it")
      .add("exclusive", request.exclusive, "no other job on the nodes", {.negatable = false})
      .add("hint", request.hint, "which CPUs Slurm chooses",
           {.choices = {"", "compute_bound", "memory_bound", "multithread", "nomultithread"}})
      .add("cpu_bind", request.cpu_bind, "srun's binding of tasks to CPUs: cores, mask_cpu:fe,fe00")
      .add("time", request.time, "time limit: 90, 1:30:00, 2-12")
      .add("partition", request.partition, "partition")
      .add("account", request.account, "account")
      .add("array", request.array, "job array: 0-15, 1,3,5-9:2, 0-99%4")
      .add("job_name", request.job_name, "name; left out: the program's")
      .add("output", request.output, "log file; left out: NAME-JOB.out")
      .add("error", request.error, "file of standard error; left out: the log file")
      .add("mail_type", request.mail_type, "when Slurm sends mail: BEGIN,END,FAIL")
      .add("mail_user", request.mail_user, "who gets the mail; left out: you")
      .add("container", request.container, "image in which apptainer or singularity runs the program")
      .add("bind", request.binds, "folder for the container: /scratch or /scratch:/data:ro; may be repeated")
      .add("module_purge", request.module_purge, "module purge, before modules are loaded",
           {.negatable = false})
      .add("module", request.modules, "module to load; may be repeated")
      .add("conda", request.conda, "conda environment of the program, by name or folder")
      .add("venv", request.venv, "folder of the program's Python virtual environment")
      .add("sbatch_option", request.sbatch_options,
           "any other option of sbatch: reservation=tutorial, no-kill; may be repeated")
      .add("requeue", request.requeue,
           fmt::format("queue the job again when the program leaves with {}", kExitPreempted),
           {.negatable = false})
      .add("signal", request.signal, "signal to the ranks before the time is up: USR1@120")
      .add("style", options.style,
           "torchrun: `lockstep run` on each node; srun: one task per rank; spawn: the program starts its "
           "ranks",
           {.choices = {"torchrun", "srun", "spawn"}})
      .add("slurm_version", options.version, "write for this Slurm: 23.11; left out: the installed one")
      .add("submit", options.submit, "submit the script and print the job's id", {.negatable = false})
      .add("wait", options.wait, "with --submit: show the log until the job ends, exit with its status",
           {.negatable = false})
      .add("test_only", options.test_only, "let sbatch check the script and print when it would start",
           {.negatable = false});
  return table;
}

// An empty text would have the meaning of an option that is not given.
void refuse_empty_values(const config::OptionTable& table) {
  const Json values = table.to_json();
  for (const auto& [name, value] : values.items()) {
    if (!table.given(name) || value != Json("")) continue;
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    throw ConfigError("slurm", fmt::format("--{} must not be empty", flag));
  }
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

SlurmOptions parse_slurm(int argc, const char* const* argv) {
  SlurmOptions options;
  config::OptionTable table = options_of(options);
  options.request.command = table.parse_command(argv[0], {argv + 1, argv + argc});
  refuse_empty_values(table);
  const auto read_count = [](const char* flag, const std::string& text, auto& count) {
    if (!text.empty()) count = launcher::parse_count(flag, text);
  };
  read_count("--nodes", options.nodes, options.request.nodes);
  read_count("--ntasks-per-node", options.ntasks_per_node, options.request.ntasks_per_node);
  read_count("--cpus-per-task", options.cpus_per_task, options.request.cpus_per_task);
  if (!options.gpu_vendor.empty()) {
    options.request.gpu_vendor =
        options.gpu_vendor == "amd" ? launcher::GpuVendor::kAmd : launcher::GpuVendor::kNvidia;
  }
  options.request.style = style_of(options.style);
  return options;
}

}  // namespace

// Prints a batch script for the program, or submits it.
int run_slurm(int argc, const char* const* argv) {
  SlurmOptions options = parse_slurm(argc, argv);
  check_modes(options);
  const base::Environment environment = base::Environment::of_process();
  choose_version(options, environment);
  options.request.launcher = base::own_executable();
  const std::string script = launcher::sbatch_script(options.request);
  for (const std::string& warning : launcher::request_warnings(options.request)) {
    base::log_warning("slurm", "{}", warning);
  }
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
