#pragma once

#include <string>
#include <vector>

#include "cluster/cpu_topology.h"

namespace lockstep::cluster {

// What the ranks of a node are bound to; torchrun's --numa-binding.
enum class CpuBinding {
  kNode,         // all CPUs of the NUMA node
  kSocket,       // all CPUs of the NUMA node's socket
  kExclusive,    // a fair share of the node's physical cores, shared with nobody
  kCoreComplex,  // the CPUs of one last-level cache of the node
};

// "node", "socket", "exclusive", "core-complex".
CpuBinding parse_cpu_binding(const std::string& text);

// The NUMA node of each of num_ranks ranks: that of its GPU, rank i having GPU i (modulo
// their number); without GPUs ranks are spread evenly over the nodes of the topology.
std::vector<int> numa_nodes_of_ranks(int num_ranks, const std::vector<int>& gpu_nodes,
                                     const std::vector<LogicalCpu>& topology);

// The CPUs of each rank, ascending. Only CPUs of the topology are given out, so masks and
// control groups are kept. ConfigError: a node without allowed CPUs, or fewer physical
// cores on it than exclusive ranks.
std::vector<std::vector<int>> bind_ranks(CpuBinding binding, const std::vector<LogicalCpu>& topology,
                                         const std::vector<int>& node_of_rank);

}  // namespace lockstep::cluster
