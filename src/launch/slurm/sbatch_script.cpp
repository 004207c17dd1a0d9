#include "launch/slurm/sbatch_script.h"

#include <fmt/format.h>
#include <lockstep/exit_status.h>
#include <lockstep/version.h>

#include <filesystem>
#include <string_view>

#include "launch/slurm/sbatch_values.h"
#include "launch/slurm/shell_quote.h"

namespace lockstep::launcher {
namespace {

bool has_gpus(const SbatchRequest& request) { return !request.gpus_per_node.empty(); }
bool one_task_per_node(const SbatchRequest& request) { return request.style != SlurmStyle::kSrun; }
bool knows_gpu_options(const SbatchRequest& request) {
  return !request.version || has_gpu_options(*request.version);
}

std::string_view style_text(SlurmStyle style) {
  switch (style) {
    case SlurmStyle::kTorchrun:
      return "# On each node one task runs `lockstep run`, which starts the node's ranks, watches\n"
             "# them and can start them again.\n";
    case SlurmStyle::kSrun: return "# srun starts each rank as a task of its own.\n";
    case SlurmStyle::kSpawn:
      return "# On each node one task runs the program, which starts the node's other ranks itself\n"
             "# (lockstep::launch).\n";
  }
  return "";
}

std::string heading(const SbatchRequest& request) {
  // Only a login shell is certain to know `module`.
  std::string text = request.modules.empty() ? "#!/bin/bash\n" : "#!/bin/bash -l\n";
  text += fmt::format("# Written by `lockstep slurm` {} for {}.\n", kVersion,
                      request.version ? "Slurm " + request.version->to_string() : "any version of Slurm");
  return text + std::string(style_text(request.style));
}

std::string directive(std::string_view flag, std::string_view value) {
  return fmt::format("#SBATCH --{}={}\n", flag, directive_quote(value));
}

std::string optional_directive(std::string_view flag, std::string_view value) {
  return value.empty() ? "" : directive(flag, value);
}

std::string job_name(const SbatchRequest& request) {
  if (!request.job_name.empty()) return request.job_name;
  std::string name = std::filesystem::path(request.command.front()).filename().string();
  // Any file may be a program; a name that cannot stand in a directive is not used.
  return is_line(name) ? name : "lockstep";
}

std::string naming(const SbatchRequest& request) {
  const std::string standard = request.array.empty() ? "%x-%j.out" : "%x-%A_%a.out";
  std::string text = "\n" + directive("job-name", job_name(request));
  text += optional_directive("partition", request.partition);
  text += optional_directive("account", request.account);
  text += optional_directive("array", request.array);
  text += directive("output", request.output.empty() ? standard : request.output);
  text += "# A job that starts again goes on in the same file.\n";
  return text + directive("open-mode", "append");
}

std::string gpu_directive(const SbatchRequest& request) {
  if (!has_gpus(request)) return "";
  if (!knows_gpu_options(request)) return directive("gres", "gpu:" + request.gpus_per_node);
  return directive("gpus-per-node", request.gpus_per_node);
}

std::string resources(const SbatchRequest& request) {
  std::string text =
      "\n# The allocation. Below, counts come from Slurm's variables: change them only here.\n";
  text += directive("nodes", std::to_string(request.nodes));
  text += "# Ranks on each node.\n";
  text += directive("ntasks-per-node", std::to_string(request.ranks_per_node()));
  text += gpu_directive(request);
  if (request.cpus_per_task) {
    text += "# Of each rank.\n" + directive("cpus-per-task", std::to_string(*request.cpus_per_task));
  }
  text += optional_directive("mem", request.mem);
  return text + optional_directive("time", request.time);
}

std::string ending(const SbatchRequest& request) {
  std::string text;
  if (!request.signal.empty()) {
    text += "\n# Sent to the ranks before the time is up; Slurm may send it a minute early.\n";
    text += directive("signal", request.signal);
  }
  if (request.requeue) {
    text +=
        "\n# May be started again, with the same job id: after preemption, and by the last lines below.\n";
    text += "#SBATCH --requeue\n";
  }
  return text;
}

std::string modules(const SbatchRequest& request) {
  std::string text;
  for (const std::string& module : request.modules) {
    text += fmt::format("module load {} || exit\n", shell_quote(module));
  }
  return text.empty() ? "" : "\n" + text;
}

// Whether srun needs to be told what it forgets; where the version is not known it is
// told too, which does no harm.
bool tell_cpus(const SbatchRequest& request) {
  if (!request.cpus_per_task || one_task_per_node(request)) return false;
  return !request.version || srun_forgets_cpus_per_task(*request.version);
}

std::string environment(const SbatchRequest& request) {
  std::string text =
      "\n# sbatch brings the submitting shell's environment along; the ranks and ports of another job\n"
      "# must not come with it. The ranks agree on a port of their own.\n"
      "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_NPROCS "
      "SRUN_CPUS_PER_TASK\n"
      "\n# The job's secret: who does not know it cannot join. It travels in the environment, where only "
      "this\n"
      "# user's processes see it.\n"
      ": \"${LOCKSTEP_JOB_TOKEN:=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n')}\"\n"
      "export LOCKSTEP_JOB_TOKEN\n";
  if (tell_cpus(request)) {
    text +=
        "\n# srun of Slurm 22.05 to 23.02 forgets --cpus-per-task, and every rank would sit on one core.\n"
        "export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n";
  }
  if (request.style == SlurmStyle::kSpawn) {
    text +=
        "\n# How many ranks the program starts over all nodes; the same as its flag --nprocs.\n"
        "export LOCKSTEP_NPROCS=\"$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))\"\n";
  }
  return text;
}

std::string container(const SbatchRequest& request) {
  if (request.container.empty()) return "";
  return "\n# The program runs inside the container, srun and the launcher outside.\n"
         "runtime=$(command -v apptainer || command -v singularity) || {\n"
         "  echo 'lockstep: neither apptainer nor singularity is here' >&2\n"
         "  exit 1\n"
         "}\n";
}

std::string command_words(const SbatchRequest& request) {
  std::string text;
  if (request.style == SlurmStyle::kTorchrun) {
    text += shell_quote(request.launcher) + " run --nproc-per-node=\"$SLURM_NTASKS_PER_NODE\" ";
  }
  if (!request.container.empty()) {
    text += fmt::format("\"$runtime\" exec {}{} ", has_gpus(request) ? "--nv " : "",
                        shell_quote(request.container));
  }
  for (const std::string& word : request.command) text += shell_quote(word) + " ";
  text.pop_back();
  return text;
}

bool binds_gpus(const SbatchRequest& request) { return has_gpus(request) && knows_gpu_options(request); }

// --gpu-bind=none has a price, so it is used only where something would bind.
std::string gpu_binding(const SbatchRequest& request) {
  if (!binds_gpus(request)) return "";
  return "\n# Each rank sees all GPUs that its node gives the job, so that they can copy to each other "
         "directly.\n"
         "# Where the site or the environment binds each task to one, that is turned off; not elsewhere, "
         "since\n"
         "# this also unsets CUDA_VISIBLE_DEVICES, which keeps two jobs of one node apart.\n"
         "gpu_bind=\n"
         "if [ -n \"${SLURM_GPU_BIND:-}${SLURM_GPUS_PER_TASK:-}${SLURM_NTASKS_PER_GPU:-}\" ]; then\n"
         "  gpu_bind=--gpu-bind=none\n"
         "fi\n";
}

std::string srun(const SbatchRequest& request) {
  std::string text =
      "\n# A rank that fails ends the others at once; one that is done early waits for nobody and ends\n"
      "# nobody. Both are said because the site's defaults differ.\n";
  std::string flags = "--kill-on-bad-exit=1 --wait=0";
  if (binds_gpus(request)) flags += " ${gpu_bind:+\"$gpu_bind\"}";
  if (one_task_per_node(request)) {
    text += "# One task a node, with all that the node's ranks were given.\n";
    flags +=
        " \\\n  --ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1"
        " \\\n  --cpus-per-task=\"$((${SLURM_CPUS_PER_TASK:-1} * SLURM_NTASKS_PER_NODE))\"";
  }
  return text + fmt::format("srun {} \\\n  {}\nstatus=$?\n", flags, command_words(request));
}

std::string requeue(const SbatchRequest& request) {
  if (!request.requeue) return "";
  return fmt::format(
      "\n# {} means: asked to stop, saved, and ready to go on. The task of an array is named by the array.\n"
      "if [ \"$status\" -eq {} ]; then\n"
      "  job=\"$SLURM_JOB_ID\"\n"
      "  if [ -n \"${{SLURM_ARRAY_JOB_ID:-}}\" ]; then "
      "job=\"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}\"; fi\n"
      "  echo \"lockstep: the job has saved and is queued again: $job\"\n"
      "  scontrol requeue \"$job\" || echo \"lockstep: it could not be queued again: $job\" >&2\n"
      "fi\n",
      kExitPreempted, kExitPreempted);
}

}  // namespace

std::string sbatch_script(const SbatchRequest& request) {
  check_request(request);
  std::string text = heading(request) + naming(request) + resources(request) + ending(request);
  text += modules(request) + environment(request) + container(request);
  text +=
      "\necho \"lockstep: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, started again ${SLURM_RESTART_COUNT:-0} "
      "times\"\n";
  text += gpu_binding(request) + srun(request) + requeue(request);
  return text + "\nexit \"$status\"\n";
}

}  // namespace lockstep::launcher
