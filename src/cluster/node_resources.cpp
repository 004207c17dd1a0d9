#include "cluster/node_resources.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/number.h"

namespace lockstep::cluster {
namespace {

// A control group that this process is in.
struct ControlGroup {
  std::string controllers;  // "cpu,cpuacct" in version 1, empty in version 2
  std::string path;         // below the root: "/user/job", empty for the root itself
};

// In the order of the file; empty if it cannot be read.
std::vector<ControlGroup> control_groups(const CgroupPaths& paths) {
  std::ifstream membership(paths.membership);
  std::vector<ControlGroup> groups;
  // "0::/group" is version 2, "4:cpu,cpuacct:/group" version 1.
  for (std::string line; std::getline(membership, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    ControlGroup group{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
    if (group.path == "/") group.path.clear();
    groups.push_back(std::move(group));
  }
  return groups;
}

// The folders whose limits apply to a group: its own, then up to `root`.
std::vector<std::string> folders_up_to_root(const std::string& root, std::string path) {
  std::vector<std::string> folders;
  while (true) {
    folders.push_back(root + path);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return folders;
    path.resize(slash);
  }
}

constexpr int kMaxCpus = 1 << 20;

std::optional<double> ratio(const std::optional<std::string>& quota,
                            const std::optional<std::string>& period) {
  const std::optional<int64_t> quota_us = quota ? base::parse_integer(*quota) : std::nullopt;
  const std::optional<int64_t> period_us = period ? base::parse_integer(*period) : std::nullopt;
  // "max" in version 2 and -1 in version 1 mean no limit.
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

std::optional<double> quota_v2(const std::string& folder) {
  std::istringstream words(base::read_first_line(folder + "/cpu.max").value_or(""));
  std::string quota;
  std::string period;
  words >> quota >> period;
  return ratio(quota, period);
}

std::optional<double> quota_v1(const std::string& folder) {
  return ratio(base::read_first_line(folder + "/cpu.cfs_quota_us"),
               base::read_first_line(folder + "/cpu.cfs_period_us"));
}

using ReadQuota = std::optional<double> (*)(const std::string& folder);

std::optional<double> least_quota(const std::string& root, const std::string& path, ReadQuota read) {
  std::optional<double> least;
  for (const std::string& folder : folders_up_to_root(root, path)) {
    const std::optional<double> quota = read(folder);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

bool names_cpu_controller(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    throw ConfigError("cluster", fmt::format("this machine has no host name: {}", std::strerror(errno)));
  }
  return name.data();
}

std::vector<int> affinity_cpus() {
  // The kernel rejects a mask smaller than its own and does not report the size it needs.
  for (int capacity = 1024; capacity <= kMaxCpus; capacity *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(capacity),
                                                                [](cpu_set_t* set) { CPU_FREE(set); });
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(bytes, mask.get());
    if (::sched_getaffinity(0, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  throw ConfigError("cluster",
                    fmt::format("cannot read the CPU affinity of this process: {}", std::strerror(errno)));
}

std::optional<double> cpu_quota(const CgroupPaths& paths) {
  std::optional<double> least;
  for (const auto& [controllers, path] : control_groups(paths)) {
    std::optional<double> quota;
    if (controllers.empty()) {
      quota = least_quota(paths.root, path, quota_v2);
    } else if (names_cpu_controller(controllers)) {
      quota = least_quota(paths.root + "/" + controllers, path, quota_v1);
      // The folder may be named after one controller only.
      if (!quota) quota = least_quota(paths.root + "/cpu", path, quota_v1);
    }
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

int usable_cpus(size_t num_affinity_cpus, std::optional<double> quota) {
  int usable = static_cast<int>(num_affinity_cpus);
  if (quota && *quota < usable) usable = static_cast<int>(*quota);
  return std::max(1, usable);
}

bool has_own_cpus(const base::Environment& environment, int local_world_size) {
  if (environment.get("OMPI_MCA_orte_bound_at_launch") == "1") return true;
  std::istringstream list(environment.get("SLURM_CPU_BIND_LIST").value_or(""));
  std::set<std::string> masks;
  for (std::string mask; std::getline(list, mask, ',');) masks.insert(mask);
  return static_cast<int>(masks.size()) == local_world_size;
}

int threads_per_rank(int usable, int local_world_size, bool own_cpus) {
  return std::max(1, own_cpus ? usable : usable / local_world_size);
}

int threads_of_this_process(const base::Environment& environment, int local_world_size) {
  return threads_per_rank(usable_cpus(affinity_cpus().size(), cpu_quota()), local_world_size,
                          has_own_cpus(environment, local_world_size));
}

namespace {

// Version 1 reports no limit as the largest multiple of the page size.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> read_number(const std::string& file) {
  std::ifstream stream(file);
  int64_t number = 0;
  if (!(stream >> number)) return std::nullopt;  // "max" of version 2
  return number;
}

// The number after the word `name` at the beginning of a line.
std::optional<int64_t> read_field(const std::string& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // a field of memory.stat
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

std::optional<MemoryRoom> smaller(std::optional<MemoryRoom> a, std::optional<MemoryRoom> b) {
  if (!a || !b) return a ? a : b;
  return a->bytes <= b->bytes ? a : b;
}

std::optional<MemoryRoom> room_in(const std::string& folder, const GroupFiles& files) {
  const auto limit = read_number(folder + "/" + files.limit);
  const auto usage = read_number(folder + "/" + files.usage);
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  const int64_t cached = read_field(folder + "/memory.stat", files.reclaimable).value_or(0);
  return MemoryRoom{std::max<int64_t>(0, *limit - *usage + cached), *limit, "the control group " + folder,
                    true};
}

std::optional<MemoryRoom> least_room(const std::string& root, const std::string& path,
                                     const GroupFiles& files) {
  std::optional<MemoryRoom> least;
  for (const std::string& folder : folders_up_to_root(root, path)) {
    least = smaller(least, room_in(folder, files));
  }
  return least;
}

std::optional<MemoryRoom> room_of(int resource, const char* name, const char* usage_field) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  const auto used_kib = read_field("/proc/self/status", usage_field);
  if (!used_kib) return std::nullopt;
  const auto bytes = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kNoLimit));
  return MemoryRoom{std::max<int64_t>(0, bytes - *used_kib * 1024), bytes, name, false};
}

}  // namespace

std::optional<MemoryRoom> process_memory_room() {
  return smaller(room_of(RLIMIT_AS, "RLIMIT_AS", "VmSize:"), room_of(RLIMIT_DATA, "RLIMIT_DATA", "VmData:"));
}

std::optional<MemoryRoom> group_memory_room(const CgroupPaths& paths) {
  std::optional<MemoryRoom> least;
  for (const auto& [controllers, path] : control_groups(paths)) {
    if (controllers.empty()) least = smaller(least, least_room(paths.root, path, kVersion2));
    if (controllers == "memory") least = smaller(least, least_room(paths.root + "/memory", path, kVersion1));
  }
  return least;
}

std::optional<MemoryRoom> host_memory_room() {
  const auto free_kib = read_field("/proc/meminfo", "MemAvailable:");
  const auto total_kib = read_field("/proc/meminfo", "MemTotal:");
  if (!free_kib || !total_kib) return std::nullopt;
  return MemoryRoom{*free_kib * 1024, *total_kib * 1024, "this host", true};
}

void require_memory_for(int ranks) {
  const int64_t each = std::max<int64_t>(1, read_field("/proc/self/status", "RssAnon:").value_or(0) * 1024);
  for (const auto& room : {host_memory_room(), group_memory_room()}) {
    if (!room || room->bytes / each >= ranks) continue;
    throw ConfigError("cluster",
                      fmt::format("{} ranks on this host need {} of memory at least, {} each, and {} has {} "
                                  "left: start fewer (nprocs), or use more nodes",
                                  ranks, base::size_text(each * ranks), base::size_text(each), room->limit,
                                  base::size_text(room->bytes)));
  }
}

}  // namespace lockstep::cluster
