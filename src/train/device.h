#pragma once

#include <c10/core/Device.h>
#include <lockstep/rank_map.h>

#include <string>

namespace lockstep::train {

// The device of this rank. compute_setup is cpu, gpu or auto (gpu if there is one). With auto, rank 0
// logs a warning if the machine has GPUs that this build cannot use. ConfigError: gpu without a usable
// GPU, or more local ranks than GPUs.
c10::Device choose_device(const RankMap& map, const std::string& compute_setup);

// Makes the C library keep freed memory instead of returning it to the kernel. A training step frees
// what the next one allocates, and the kernel would provide it again page by page: 6 % of a step of a
// small CNN. Blocks of more than 32 MiB are still returned. Does nothing if GLIBC_TUNABLES or MALLOC_*
// variables set the same.
void keep_freed_memory();

}  // namespace lockstep::train
