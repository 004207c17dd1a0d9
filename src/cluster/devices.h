#pragma once

#include <lockstep/rank_map.h>

#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// What CUDA_VISIBLE_DEVICES lets this process see.
struct VisibleDevices {
  // False: the variable is unset and every GPU of the machine is visible.
  bool restricted = false;
  // Indices ("0") and UUIDs ("GPU-8932f937", "MIG-..."), in the order in which CUDA
  // numbers them.
  std::vector<std::string> devices;
};

// Reads the variable as CUDA does: empty, "-1" and Slurm's "NoDevFiles" hide every
// GPU, and a negative index ends the list. ConfigError, where CUDA silently sees
// none: an entry that is neither index nor UUID, or one named twice.
VisibleDevices parse_visible_devices(const std::optional<std::string>& value);

// How many GPUs CUDA would show this process, without asking CUDA: those that
// NVIDIA's driver has in `driver_folder` and CUDA_VISIBLE_DEVICES does not hide.
int count_visible_gpus(const base::Environment& environment,
                       const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// The CUDA index of this rank among `visible_count` GPUs. The local rank; or 0
// where one GPU is visible, because then the launcher gave each task its own, which
// check_distinct_devices proves. ConfigError: no GPU, or fewer GPUs than local
// ranks; it shows CUDA_VISIBLE_DEVICES.
int choose_device(const RankMap& map, int visible_count, const base::Environment& environment);

struct DeviceOfRank {
  int rank = 0;
  std::string host;
  std::string device_uuid;  // "" on the CPU
};

// `table` holds every rank of the job, gathered. ConfigError names the first two
// ranks that share a device of a host.
void check_distinct_devices(const std::vector<DeviceOfRank>& table);

}  // namespace lockstep::cluster
