#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/control_group.h"

namespace lockstep::cluster {

// How much more memory something leaves this process.
struct MemoryRoom {
  int64_t bytes = 0;
  int64_t limit_bytes = 0;
  std::string limit;       // what sets it: "RLIMIT_AS", "the control group /sys/fs/cgroup/job"
  bool is_shared = false;  // with other processes of the host
};

// By RLIMIT_AS and RLIMIT_DATA. nullopt: neither is set.
std::optional<MemoryRoom> process_memory_room();

// By the control groups (version 1 or 2), from this process's own up to the root; what is
// only kept of files there counts as free. nullopt: no limit.
std::optional<MemoryRoom> group_memory_room(const CgroupPaths& paths = {});

// What the whole host has left, caches of files counted as free.
std::optional<MemoryRoom> host_memory_room();

// Before copies of this process are started as ranks: each becomes at least what it is now. A
// number that is too large by a slip would take the host down before anything else noticed.
// ConfigError: they do not fit, with the numbers.
void require_memory_for(int ranks);

}  // namespace lockstep::cluster
