#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"

// What this machine gives this process: a host name, CPUs and memory, as affinity masks,
// resource limits and control groups (cgroup version 1 or 2) restrict them.
namespace lockstep::cluster {

// This machine's name. ConfigError: it has none.
std::string host_name();

// Where a process finds its control groups. Tests pass folders with prepared files.
struct CgroupPaths {
  std::string membership = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// --- CPUs ---

// The CPUs that this thread may run on, ascending. Correct on machines of any size.
std::vector<int> affinity_cpus();

// The number of CPUs that the control groups' quota allows this process: the least quota
// from its own group up to the root. nullopt: no limit.
std::optional<double> cpu_quota(const CgroupPaths& paths = {});

// How many threads can run at once: the CPUs of the mask, at most the quota, at least 1.
int usable_cpus(size_t num_affinity_cpus, std::optional<double> quota);

// Whether the launcher gave each local rank its own CPUs, so that this process's mask is
// not shared: OpenMPI binding, or one Slurm mask per task.
bool has_own_cpus(const base::Environment& environment, int local_world_size);

// usable / local_world_size, at least 1; all of them if own_cpus.
int threads_per_rank(int usable, int local_world_size, bool own_cpus);

// threads_per_rank() with the current mask, quota and environment of this process.
int threads_of_this_process(const base::Environment& environment, int local_world_size);

// --- Memory ---

// How much more memory one limit lets this process allocate.
struct MemoryRoom {
  int64_t bytes = 0;
  int64_t limit_bytes = 0;
  std::string limit;       // its name: "RLIMIT_AS", "the control group /sys/fs/cgroup/job"
  bool is_shared = false;  // with other processes of the host
};

// By RLIMIT_AS and RLIMIT_DATA. nullopt: neither is set.
std::optional<MemoryRoom> process_memory_room();

// By the control groups, from this process's own up to the root; reclaimable file caches
// count as free. nullopt: no limit.
std::optional<MemoryRoom> group_memory_room(const CgroupPaths& paths = {});

// What the whole host has left; file caches count as free.
std::optional<MemoryRoom> host_memory_room();

// Called before copies of this process are started as ranks, each of which needs at least
// the memory that this process has now. A mistyped rank count would otherwise exhaust the
// host's memory before any other check. ConfigError: they do not fit, with the numbers.
void require_memory_for(int ranks);

}  // namespace lockstep::cluster
