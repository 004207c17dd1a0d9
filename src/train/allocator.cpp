#include "train/allocator.h"

#include <malloc.h>

#include <cstdlib>
#include <string_view>

namespace lockstep::train {
namespace {

constexpr int kMmapThresholdBytes = 32 << 20;  // the most that mallopt takes
constexpr int kTrimThresholdBytes = 1 << 30;

bool user_tunes_malloc() {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::string_view(tunables).find("glibc.malloc") != std::string_view::npos)
    return true;
  return std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr || std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr;
}

}  // namespace

void keep_freed_memory() {
  if (user_tunes_malloc()) return;
  ::mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  ::mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
}

}  // namespace lockstep::train
