#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "cluster/control_group.h"

namespace lockstep::cluster {

// This machine's name; ConfigError where it has none.
std::string host_name();

// The CPUs that this thread may run on, ascending. Right on machines of any size.
std::vector<int> affinity_cpus();

// CPUs' worth of time that the control groups (version 1 or 2) leave this process:
// the least quota from its own group up to the root. nullopt: no limit.
std::optional<double> cpu_quota(const CgroupPaths& paths = {});

// How many threads can run at once: the CPUs of the mask, no more than the quota,
// at least 1.
int usable_cpus(size_t num_affinity_cpus, std::optional<double> quota);

// Whether the launcher gave each local rank CPUs of its own, so that this process's
// mask is not shared: OpenMPI binding, or one Slurm mask a task.
bool has_own_cpus(const base::Environment& environment, int local_world_size);

// usable / local_world_size, at least 1; all of them where they are the rank's own.
int threads_per_rank(int usable, int local_world_size, bool own_cpus);

// The same for this process, as its mask, quota and environment are now.
int threads_of_this_process(const base::Environment& environment, int local_world_size);

}  // namespace lockstep::cluster
