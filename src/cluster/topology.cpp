#include "cluster/topology.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "base/number.h"

namespace lockstep::cluster {
namespace {

constexpr int kMaxCpus = 1 << 20;

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<double> ratio(const std::optional<std::string>& quota,
                            const std::optional<std::string>& period) {
  const std::optional<int64_t> quota_us = quota ? base::parse_integer(*quota) : std::nullopt;
  const std::optional<int64_t> period_us = period ? base::parse_integer(*period) : std::nullopt;
  // "max" in version 2 and -1 in version 1 mean no limit.
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

std::optional<double> quota_v2(const std::string& folder) {
  std::istringstream words(read_line(folder + "/cpu.max").value_or(""));
  std::string quota;
  std::string period;
  words >> quota >> period;
  return ratio(quota, period);
}

std::optional<double> quota_v1(const std::string& folder) {
  return ratio(read_line(folder + "/cpu.cfs_quota_us"), read_line(folder + "/cpu.cfs_period_us"));
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
  // The kernel refuses a mask smaller than its own, whose size it does not tell.
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
      // The folder may carry one controller's name only.
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

}  // namespace lockstep::cluster
