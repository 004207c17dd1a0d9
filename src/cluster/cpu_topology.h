#pragma once

#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

// One CPU as the kernel counts them, and what it shares.
struct LogicalCpu {
  int id = 0;
  int numa_node = 0;
  int socket = 0;
  int core = 0;   // the lowest CPU of the same physical core
  int cache = 0;  // the lowest CPU that shares its last-level cache
};

// The given CPUs, in ascending order, as sysfs describes them. What it does not tell
// (a container without it) is taken as one node, one socket, a core and a cache a CPU.
std::vector<LogicalCpu> read_cpu_topology(const std::vector<int>& cpus, const std::string& sysfs = "/sys");

// The NUMA node of every GPU that this process may use, in CUDA's order with the
// driver's numbering by PCI address. Empty: no GPU.
std::vector<int> gpu_numa_nodes(const base::Environment& environment, const std::string& sysfs = "/sys",
                                const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// "0-3,8" as numbers. Throws ConfigError for anything else.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace lockstep::cluster
