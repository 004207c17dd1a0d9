#pragma once

#include <string>
#include <vector>

#include "base/environment.h"

// Binds the ranks of a node to CPUs, near their GPUs.
namespace lockstep::cluster {

// One CPU as the kernel numbers them, and what it shares with others.
struct LogicalCpu {
  int id = 0;
  int numa_node = 0;
  int socket = 0;
  int core = 0;   // the lowest CPU of the same physical core
  int cache = 0;  // the lowest CPU that shares its last-level cache
};

// The given CPUs, in ascending order, as sysfs describes them. Without sysfs (some
// containers): one NUMA node, one socket, and one core and cache per CPU.
std::vector<LogicalCpu> read_cpu_topology(const std::vector<int>& cpus, const std::string& sysfs = "/sys");

// The NUMA node of every GPU that this process may use, in CUDA's order when CUDA numbers
// devices by PCI address; without NVIDIA GPUs that of every AMD GPU, in ROCm's order. Empty: no GPU.
std::vector<int> gpu_numa_nodes(const base::Environment& environment, const std::string& sysfs = "/sys",
                                const std::string& driver_folder = "/proc/driver/nvidia/gpus");

// "0-3,8" as numbers. Throws ConfigError for any other text.
std::vector<int> parse_cpu_list(const std::string& text);

// What the ranks of a node are bound to; torchrun's --numa-binding.
enum class CpuBinding {
  kNode,         // all CPUs of the NUMA node
  kSocket,       // all CPUs of the NUMA node's socket
  kExclusive,    // a fair share of the node's physical cores, not shared with other ranks
  kCoreComplex,  // the CPUs of one last-level cache of the node
};

// "node", "socket", "exclusive", "core-complex".
CpuBinding parse_cpu_binding(const std::string& text);

// The NUMA node of each of num_ranks ranks: the node of its GPU, where rank i uses GPU i
// modulo their number; without GPUs the ranks are spread evenly over the nodes.
std::vector<int> numa_nodes_of_ranks(int num_ranks, const std::vector<int>& gpu_nodes,
                                     const std::vector<LogicalCpu>& topology);

// The CPUs of each rank, ascending. Only CPUs of `topology` are assigned, so existing masks
// and control groups are respected. ConfigError: a node without allowed CPUs, or fewer
// physical cores on it than exclusive ranks.
std::vector<std::vector<int>> bind_ranks(CpuBinding binding, const std::vector<LogicalCpu>& topology,
                                         const std::vector<int>& node_of_rank);

}  // namespace lockstep::cluster
