#pragma once

#include <c10/core/Device.h>
#include <lockstep/rank_map.h>

#include <string>

namespace lockstep::train {

// The device of this rank: compute_setup is cpu, gpu, or auto (gpu where one is
// found). With auto, rank 0 logs a warning where the machine has GPUs that this build
// cannot use. ConfigError: gpu without a usable one, or more local ranks than GPUs.
c10::Device choose_device(const RankMap& map, const std::string& compute_setup);

}  // namespace lockstep::train
