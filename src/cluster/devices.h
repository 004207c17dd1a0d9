#pragma once

#include <lockstep/rank_map.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// What CUDA_VISIBLE_DEVICES, or one of ROCm's variables, lets this process see.
struct VisibleDevices {
  // False: the variable is unset and every GPU of the machine is visible.
  bool restricted = false;
  // Indices ("0") and UUIDs ("GPU-8932f937", "MIG-..."), in the order in which CUDA
  // numbers them.
  std::vector<std::string> devices;
};

// Reads the variable as CUDA does: empty, "-1" and Slurm's "NoDevFiles" hide every GPU, and
// a negative index ends the list. ConfigError, which shows the variable: an entry that is neither
// index nor UUID, or one named twice; CUDA silently shows no GPU then.
VisibleDevices parse_visible_devices(const std::optional<std::string>& value,
                                     std::string_view variable = "CUDA_VISIBLE_DEVICES");

// The number of GPUs that the variables of CUDA and ROCm list, which Slurm sets for a task: the least
// of them. nullopt: none is set. ConfigError as above.
std::optional<int> count_listed_gpus(const base::Environment& environment);

// How many GPUs CUDA would show this process, without calling CUDA: those that NVIDIA's
// driver lists in `driver_folder` and CUDA_VISIBLE_DEVICES does not hide. If the driver lists none,
// the AMD GPUs that ROCm would show (visible_amd_gpus()).
int count_visible_gpus(const base::Environment& environment,
                       const std::string& driver_folder = "/proc/driver/nvidia/gpus",
                       const std::string& sysfs = "/sys");

// The CUDA index of this rank among `visible_count` GPUs: the local rank; or 0 if one GPU is
// visible, because then the launcher gave each task its own, which check_distinct_devices
// verifies. ConfigError, which shows CUDA_VISIBLE_DEVICES: no GPU, or fewer GPUs than local
// ranks.
int choose_device(const RankMap& map, int visible_count, const base::Environment& environment);

struct DeviceOfRank {
  int rank = 0;
  std::string host;
  std::string device_uuid;  // "" on the CPU
};

// `table` holds every rank of the job. ConfigError names the first two ranks that share a
// device of a host.
void check_distinct_devices(const std::vector<DeviceOfRank>& table);

}  // namespace lockstep::cluster
