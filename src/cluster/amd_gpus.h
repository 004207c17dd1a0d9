#pragma once

#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// A GPU as AMD's kernel driver (amdgpu with KFD) describes it. On an MI250X each of the two dies is one.
struct AmdGpu {
  std::string target;  // what compilers call it: "gfx90a"; "" on kernels that do not report it
  std::string name;    // "AMD Instinct MI250X"; else the driver's name of the chip, "aldebaran"; may be ""
  std::string uuid;    // "GPU-00a1b2c3d4e5f607", as ROCm writes it; "" if the chip has none
  int numa_node = 0;

  // "AMD Instinct MI250X, gfx90a"
  std::string description() const;
};

// The GPUs that ROCm's HIP would show this process, in its order and without calling it: those that the
// driver lists below `sysfs`, of which ROCR_VISIBLE_DEVICES selects some, of which HIP_VISIBLE_DEVICES (or
// CUDA_VISIBLE_DEVICES if that is unset) selects some. GPUs of another control group are not
// listed. As in ROCm, a number or UUID that no GPU has ends a list. ConfigError: an entry that is neither a
// number nor a UUID, or that is repeated; ROCm silently ignores the rest of the list then. Without AMD GPUs
// the variables are not read.
std::vector<AmdGpu> visible_amd_gpus(const base::Environment& environment, const std::string& sysfs = "/sys");

// The message for a user who wants GPUs and has only AMD's: "2 AMD GPUs are visible (AMD Instinct MI250X,
// gfx90a), but this build has no ROCm ...", with the description of the first. "": no AMD GPU is visible, or
// NVIDIA's driver lists a GPU in `driver_folder`. ConfigError as above.
std::string explain_amd_gpus(const base::Environment& environment, const std::string& sysfs = "/sys",
                             const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// Why this build cannot use AMD GPUs.
inline constexpr char kNoRocm[] = "this build has no ROCm (its LibTorch and its GPU library are for CUDA)";

}  // namespace lockstep::cluster
