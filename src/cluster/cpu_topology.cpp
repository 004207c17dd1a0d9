#include "cluster/cpu_topology.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "base/number.h"
#include "cluster/devices.h"

namespace lockstep::cluster {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxCpu = 1 << 20;

std::optional<std::string> read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int> read_number(const fs::path& path) {
  const std::optional<std::string> line = read_line(path);
  const std::optional<int64_t> number = line ? base::parse_integer(*line) : std::nullopt;
  if (!number || *number < -1 || *number > kMaxCpu) return std::nullopt;
  return static_cast<int>(*number);
}

std::optional<int> lowest_of(const fs::path& list) {
  const std::optional<std::string> line = read_line(list);
  if (!line || line->empty()) return std::nullopt;
  const std::vector<int> cpus = parse_cpu_list(*line);
  return *std::min_element(cpus.begin(), cpus.end());
}

// Instruction caches are no place where data is shared.
std::optional<int> last_level_cache(const fs::path& cpu) {
  std::error_code error;
  int highest = -1;
  std::optional<int> lowest_cpu;
  for (const auto& entry : fs::directory_iterator(cpu / "cache", error)) {
    if (!entry.path().filename().string().starts_with("index")) continue;
    if (read_line(entry.path() / "type") == "Instruction") continue;
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
  for (const auto& entry : fs::directory_iterator(sysfs / "devices/system/node", error)) {
    const std::string name = entry.path().filename();
    const std::optional<int64_t> number =
        name.starts_with("node") ? base::parse_integer(name.substr(4)) : std::nullopt;
    const std::optional<std::string> cpus = read_line(entry.path() / "cpulist");
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
  for (const auto& entry : fs::directory_iterator(driver_folder, error)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  std::vector<Gpu> gpus;
  for (const fs::path& entry : entries) {
    // -1 on machines with one node.
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

}  // namespace lockstep::cluster
