#include "cluster/cpu_binding.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/folder.h"
#include "base/number.h"
#include "cluster/amd_gpus.h"
#include "cluster/devices.h"

namespace lockstep::cluster {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxCpu = 1 << 20;

std::optional<int> read_number(const fs::path& path) {
  const std::optional<std::string> line = base::read_first_line(path);
  const std::optional<int64_t> number = line ? base::parse_integer(*line) : std::nullopt;
  if (!number || *number < -1 || *number > kMaxCpu) return std::nullopt;
  return static_cast<int>(*number);
}

std::optional<int> lowest_of(const fs::path& list) {
  const std::optional<std::string> line = base::read_first_line(list);
  if (!line || line->empty()) return std::nullopt;
  const std::vector<int> cpus = parse_cpu_list(*line);
  return *std::min_element(cpus.begin(), cpus.end());
}

// Instruction caches do not count: they hold no shared data.
std::optional<int> last_level_cache(const fs::path& cpu) {
  std::error_code error;
  int highest = -1;
  std::optional<int> lowest_cpu;
  for (const base::FolderEntry& entry : base::list_folder(cpu / "cache", error)) {
    if (!entry.path().filename().string().starts_with("index")) continue;
    if (base::read_first_line(entry.path() / "type") == "Instruction") continue;
    const int level = read_number(entry.path() / "level").value_or(-1);
    if (level <= highest) continue;
    highest = level;
    lowest_cpu = lowest_of(entry.path() / "shared_cpu_list");
  }
  return lowest_cpu;
}

std::map<int, int> numa_node_of_cpus(const fs::path& sysfs) {
  std::map<int, int> nodes;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(sysfs / "devices/system/node", error)) {
    const std::string name = entry.path().filename();
    const std::optional<int64_t> number =
        name.starts_with("node") ? base::parse_integer(name.substr(4)) : std::nullopt;
    const std::optional<std::string> cpus = base::read_first_line(entry.path() / "cpulist");
    if (!number || !cpus || cpus->empty()) continue;
    for (const int cpu : parse_cpu_list(*cpus)) nodes[cpu] = static_cast<int>(*number);
  }
  return nodes;
}

struct Gpu {
  std::string uuid;
  int numa_node = 0;
};

std::string uuid_of(const fs::path& driver_entry) {
  std::ifstream file(driver_entry / "information");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("GPU UUID:")) continue;
    return line.substr(line.find_last_of(" \t") + 1);
  }
  return "";
}

std::vector<Gpu> all_gpus(const fs::path& sysfs, const fs::path& driver_folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(driver_folder, error)) {
    entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  std::vector<Gpu> gpus;
  for (const fs::path& entry : entries) {
    // sysfs shows -1 on machines with one NUMA node.
    const int node = read_number(sysfs / "bus/pci/devices" / entry.filename() / "numa_node").value_or(0);
    gpus.push_back({uuid_of(entry), std::max(node, 0)});
  }
  return gpus;
}

}  // namespace

std::vector<LogicalCpu> read_cpu_topology(const std::vector<int>& cpus, const std::string& sysfs) {
  const std::map<int, int> nodes = numa_node_of_cpus(sysfs);
  std::vector<LogicalCpu> topology;
  for (const int id : cpus) {
    const fs::path folder = fs::path(sysfs) / fmt::format("devices/system/cpu/cpu{}", id);
    LogicalCpu cpu;
    cpu.id = id;
    const auto node = nodes.find(id);
    cpu.numa_node = node == nodes.end() ? 0 : node->second;
    cpu.socket = std::max(0, read_number(folder / "topology/physical_package_id").value_or(0));
    cpu.core = lowest_of(folder / "topology/thread_siblings_list").value_or(id);
    cpu.cache = last_level_cache(folder).value_or(id);
    topology.push_back(cpu);
  }
  std::sort(topology.begin(), topology.end(),
            [](const LogicalCpu& a, const LogicalCpu& b) { return a.id < b.id; });
  return topology;
}

std::vector<int> gpu_numa_nodes(const base::Environment& environment, const std::string& sysfs,
                                const std::string& driver_folder) {
  const std::vector<Gpu> gpus = all_gpus(sysfs, driver_folder);
  const VisibleDevices visible = parse_visible_devices(environment.get("CUDA_VISIBLE_DEVICES"));
  std::vector<int> nodes;
  if (gpus.empty()) {
    for (const AmdGpu& gpu : visible_amd_gpus(environment, sysfs)) nodes.push_back(gpu.numa_node);
    return nodes;
  }
  if (!visible.restricted) {
    for (const Gpu& gpu : gpus) nodes.push_back(gpu.numa_node);
    return nodes;
  }
  for (const std::string& device : visible.devices) {
    const std::optional<int64_t> index = base::parse_integer(device);
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return index ? &gpu - gpus.data() == *index : gpu.uuid.starts_with(device);
    });
    if (found != gpus.end()) nodes.push_back(found->numa_node);
  }
  return nodes;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t dash = item.find('-', 1);
    const std::optional<int64_t> first = base::parse_integer(item.substr(0, dash));
    const std::optional<int64_t> last =
        dash == std::string::npos ? first : base::parse_integer(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMaxCpu) {
      throw ConfigError("cluster", fmt::format("not a list of CPUs: '{}'", text));
    }
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  if (cpus.empty()) throw ConfigError("cluster", fmt::format("not a list of CPUs: '{}'", text));
  return cpus;
}

namespace {

using Groups = std::vector<std::vector<int>>;

// The CPUs that satisfy `wanted`, grouped by `key`, groups in the order of their keys.
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

// If the cores do not divide evenly, the first ranks get one more.
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
