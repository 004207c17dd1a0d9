#include "cluster/cpu_binding.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <map>
#include <set>

namespace lockstep::cluster {
namespace {

using Groups = std::vector<std::vector<int>>;

// The CPUs that `wanted` takes, grouped by `key`, groups in the order of their keys.
template <typename Wanted, typename Key>
Groups group_cpus(const std::vector<LogicalCpu>& topology, Wanted wanted, Key key) {
  std::map<int, std::vector<int>> groups;
  for (const LogicalCpu& cpu : topology) {
    if (wanted(cpu)) groups[key(cpu)].push_back(cpu.id);
  }
  Groups result;
  for (auto& [number, cpus] : groups) result.push_back(std::move(cpus));
  return result;
}

std::vector<int> joined(const Groups& groups, size_t begin, size_t end) {
  std::vector<int> cpus;
  for (size_t i = begin; i < end; ++i) cpus.insert(cpus.end(), groups[i].begin(), groups[i].end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

std::vector<int> socket_cpus(const std::vector<LogicalCpu>& topology, int node) {
  std::set<int> sockets;
  for (const LogicalCpu& cpu : topology) {
    if (cpu.numa_node == node) sockets.insert(cpu.socket);
  }
  std::vector<int> cpus;
  for (const LogicalCpu& cpu : topology) {
    if (sockets.contains(cpu.socket)) cpus.push_back(cpu.id);
  }
  return cpus;
}

// Where cores do not divide evenly the first ranks get one more.
std::vector<int> share_of_cores(const Groups& cores, size_t index, size_t ranks, int node) {
  if (cores.size() < ranks) {
    throw ConfigError("cluster",
                      fmt::format("--numa-binding exclusive: NUMA node {} has {} physical cores for {} ranks",
                                  node, cores.size(), ranks));
  }
  const size_t each = cores.size() / ranks, extra = cores.size() % ranks;
  const size_t begin = index * each + std::min(index, extra);
  return joined(cores, begin, begin + each + (index < extra ? 1 : 0));
}

}  // namespace

CpuBinding parse_cpu_binding(const std::string& text) {
  if (text == "node") return CpuBinding::kNode;
  if (text == "socket") return CpuBinding::kSocket;
  if (text == "exclusive") return CpuBinding::kExclusive;
  if (text == "core-complex") return CpuBinding::kCoreComplex;
  throw ConfigError("cluster",
                    fmt::format("a binding is node, socket, exclusive or core-complex: '{}'", text));
}

std::vector<int> numa_nodes_of_ranks(int num_ranks, const std::vector<int>& gpu_nodes,
                                     const std::vector<LogicalCpu>& topology) {
  std::set<int> distinct;
  for (const LogicalCpu& cpu : topology) distinct.insert(cpu.numa_node);
  const std::vector<int> nodes(distinct.begin(), distinct.end());
  std::vector<int> result;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    result.push_back(gpu_nodes.empty() ? nodes[index * nodes.size() / static_cast<size_t>(num_ranks)]
                                       : gpu_nodes[index % gpu_nodes.size()]);
  }
  return result;
}

std::vector<std::vector<int>> bind_ranks(CpuBinding binding, const std::vector<LogicalCpu>& topology,
                                         const std::vector<int>& node_of_rank) {
  std::vector<std::vector<int>> result;
  std::map<int, size_t> seen;  // ranks of a node so far
  for (const int node : node_of_rank) {
    const auto in_node = [node](const LogicalCpu& cpu) { return cpu.numa_node == node; };
    const size_t index = seen[node]++;
    const auto ranks = static_cast<size_t>(std::count(node_of_rank.begin(), node_of_rank.end(), node));
    const Groups cores = group_cpus(topology, in_node, [](const LogicalCpu& cpu) { return cpu.core; });
    if (cores.empty()) {
      throw ConfigError("cluster", fmt::format("NUMA node {} has no CPU that this process may use", node));
    }
    if (binding == CpuBinding::kNode) result.push_back(joined(cores, 0, cores.size()));
    if (binding == CpuBinding::kSocket) result.push_back(socket_cpus(topology, node));
    if (binding == CpuBinding::kExclusive) result.push_back(share_of_cores(cores, index, ranks, node));
    if (binding == CpuBinding::kCoreComplex) {
      Groups caches = group_cpus(topology, in_node, [](const LogicalCpu& cpu) { return cpu.cache; });
      std::stable_sort(caches.begin(), caches.end(),
                       [](const auto& a, const auto& b) { return a.size() > b.size(); });
      result.push_back(caches[index % caches.size()]);
    }
  }
  return result;
}

}  // namespace lockstep::cluster
