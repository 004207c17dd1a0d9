#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/environment.h"

namespace lockstep::launcher {

// A release of Slurm: year and month. They differ in what a batch script must say.
struct SlurmVersion {
  int year = 0;
  int month = 0;

  bool operator==(const SlurmVersion&) const = default;
  bool operator<(const SlurmVersion& other) const {
    return year != other.year ? year < other.year : month < other.month;
  }
  std::string to_string() const;  // "22.05"
};

// Reads "22.05", "22.05.8", "slurm 22.05.8" and "slurm-wlm 22.05.8". nullopt: anything
// else.
std::optional<SlurmVersion> parse_slurm_version(std::string_view text);

// Asks sbatch, else scontrol; nullopt where neither is there or answers.
std::optional<SlurmVersion> installed_slurm_version(const base::Environment& environment);

// Whether srun forgets the --cpus-per-task of its batch script: 22.05 up to 23.02.
bool srun_forgets_cpus_per_task(const SlurmVersion& version);
// Whether --gpus-per-node and --gpu-bind exist: since 19.05, before it --gres=gpu:N.
bool has_gpu_options(const SlurmVersion& version);

}  // namespace lockstep::launcher
