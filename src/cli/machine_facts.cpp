#include "cli/machine_facts.h"

#include <fmt/format.h>
#include <lockstep/version.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "base/environment.h"
#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/installation.h"
#include "cluster/allocation_check.h"
#include "cluster/amd_gpus.h"
#include "cluster/devices.h"
#include "cluster/node_resources.h"
#include "cluster/placement.h"
#include "track/gpu_monitor.h"

namespace lockstep::cli {

DoctorOptions parse_doctor(int argc, const char* const* argv) {
  DoctorOptions options;
  config::OptionTable("Reports what this machine and this allocation can do, rank by rank.",
                      config::kNoVariables)
      .add("json", options.json, "print JSON", {.negatable = false})
      .add("backend", options.backend, "of the self-test",
           {.choices = {"auto", "shm", "gloo", "mpi", "nccl", "fake"}})
      .add("compute_setup", options.compute_setup, "device", {.choices = {"cpu", "gpu", "auto"}})
      .parse(argc, argv);
  return options;
}

Json version_facts() { return {{"lockstep", kVersion}, {"commit", kCommit}, {"compiler", __VERSION__}}; }

Json system_facts() {
  utsname name{};
  ::uname(&name);
  struct sysinfo info {};
  ::sysinfo(&info);
  const double gib = static_cast<double>(info.totalram) * info.mem_unit / (1 << 30);
  return {{"host", cluster::host_name()},
          {"kernel", fmt::format("{} {}", name.sysname, name.release)},
          {"memory", fmt::format("{:.1f} GiB", gib)}};
}

Json cpu_facts() {
  const std::vector<int> mask = cluster::affinity_cpus();
  const std::optional<double> quota = cluster::cpu_quota();
  return {{"online", ::get_nprocs()},
          {"affinity", mask},
          {"cgroup quota", quota ? Json(*quota) : Json("none")},
          {"usable", cluster::usable_cpus(mask.size(), quota)}};
}

Json amd_gpu_facts() {
  Json devices = Json::object();
  int index = 0;
  for (const cluster::AmdGpu& gpu : cluster::visible_amd_gpus(base::Environment::of_process())) {
    const std::string space = gpu.uuid.empty() ? "" : " ";
    devices[fmt::format("amd:{}", index++)] = gpu.description() + space + gpu.uuid;
  }
  if (!devices.empty()) devices["amd"] = fmt::format("not used: {}", cluster::kNoRocm);
  return devices;
}

Json map_facts(const RankMap& map) {
  return {{"launcher", to_string(map.launcher)},
          {"rank", map.rank},
          {"world_size", map.world_size},
          {"local_rank", map.local_rank},
          {"local_world_size", map.local_world_size},
          {"node_rank", map.node_rank},
          {"num_nodes", map.num_nodes},
          {"nodes", map.nodes},
          {"rendezvous", map.rendezvous.to_string()}};
}

Json allocation_facts(const RankMap& map, bool uses_gpu) {
  const base::Environment environment = base::Environment::of_process();
  cluster::AllocationFacts facts =
      cluster::facts_of_process(environment, map.local_world_size, cluster::count_visible_gpus(environment));
  facts.wants_gpu |= uses_gpu;
  const std::vector<std::string> problems = cluster::check_allocation(map, environment, facts);
  return problems.empty() ? Json("fits") : Json(problems);
}

std::string indented(const Json& value, int depth) {
  const std::string indent(static_cast<size_t>(depth) * 2, ' ');
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (item.is_object()) {
      text += fmt::format("{}{}:\n{}", indent, key, indented(item, depth + 1));
    } else {
      text += fmt::format("{}{:<{}} {}\n", indent, key, 24 - 2 * depth,
                          item.is_string() ? item.get<std::string>() : item.dump());
    }
  }
  return text;
}

namespace {

// The text of what went wrong, if anything did.
template <typename Facts>
Json or_problem(const Facts& facts) {
  try {
    return facts();
  } catch (const std::exception& error) {
    return error.what();
  }
}

// NVIDIA's GPUs as the driver numbers them, and AMD's.
Json gpu_facts() {
  std::string reason;
  Json devices = Json::object();
  if (const std::unique_ptr<track::Nvml> nvml = track::Nvml::load(reason)) {
    int index = 0;
    for (const std::string& name : nvml->names()) devices[fmt::format("nvidia:{}", index++)] = name;
  }
  devices.update(amd_gpu_facts());
  return devices.empty() ? Json("none") : devices;
}

}  // namespace

// Reports what needs no LibTorch, of this process alone: no backend can be tried.
int run_doctor_without_torch(int argc, const char* const* argv) {
  const DoctorOptions options = parse_doctor(argc, argv);
  const base::Environment environment = base::Environment::of_process();
  Json machine = {{"versions", version_facts()}, {"system", system_facts()}, {"cpus", cpu_facts()}};
  machine["gpus"] = or_problem(gpu_facts);
  Json rank = {{"machine", machine}};
  try {
    const RankMap map = cluster::decide_placement({}, environment, cluster::host_name()).map;
    rank["map"] = map_facts(map);
    rank["allocation"] = or_problem([&] { return allocation_facts(map, options.compute_setup == "gpu"); });
  } catch (const std::exception& error) {
    rank["map"] = error.what();
  }
  std::string torch;
  try {
    own_installation().tensor_program(environment);
  } catch (const ConfigError& error) {
    torch = error.what();
  }
  if (options.json) {
    const Json report = {{"ranks", Json::array({rank})}, {"libtorch", torch}};
    std::fputs((report.dump(2) + "\n").c_str(), stdout);
  } else {
    std::fputs((indented(rank, 0) + "libtorch:\n  " + torch + "\n").c_str(), stdout);
  }
  return kExitSuccess;
}

}  // namespace lockstep::cli
