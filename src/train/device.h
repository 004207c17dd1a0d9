#pragma once

#include <c10/core/Device.h>
#include <lockstep/rank_map.h>

#include <string>

namespace lockstep::train {

// The device of this rank: compute_setup is cpu, gpu, or auto (gpu where one is
// found). With auto, rank 0 logs a warning where the machine has GPUs that this build
// cannot use. ConfigError: gpu without a usable one, or more local ranks than GPUs.
c10::Device choose_device(const RankMap& map, const std::string& compute_setup);

// A training step frees what the next one allocates again. Tells the C library to
// keep such memory instead of giving it back to the kernel, which would hand it out
// anew page by page: 6 % of a step of a small CNN. Blocks of over 32 MiB go back as
// before. Does nothing where GLIBC_TUNABLES or MALLOC_* variables set the same.
void keep_freed_memory();

}  // namespace lockstep::train
