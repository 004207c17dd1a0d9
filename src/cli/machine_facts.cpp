#include "cli/machine_facts.h"

#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/version.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <thread>

#include "cluster/node_resources.h"
#include "comm/plugin.h"

namespace lockstep::cli {
namespace {

Json version_facts() {
  return {{"lockstep", kVersion}, {"libtorch", TORCH_VERSION}, {"compiler", __VERSION__}};
}

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
          {"usable", cluster::usable_cpus(mask.size(), quota)},
          {"libtorch threads", at::get_num_threads()}};
}

Json gpu_facts() {
  try {
    Json devices = Json::object();
    int index = 0;
    for (const comm::CudaDevice& device : comm::list_cuda_devices()) {
      devices[fmt::format("cuda:{}", index++)] = fmt::format("{} {}", device.name, device.uuid);
    }
    return devices.empty() ? Json("none: the CUDA library loads and finds no device") : devices;
  } catch (const std::exception& error) {
    return fmt::format("none: {}", error.what());
  }
}

// One all-reduce of 1 and 2 between two ranks; the text of what went wrong, or "".
std::string try_pair(const std::string& backend) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::string problems[2];
  const auto rank_main = [&](int rank) {
    try {
      const Communicator group =
          make_communicator(store, rank, 2, {.backend = backend, .timeout = std::chrono::seconds(10)});
      const at::Tensor tensor = torch::full({16}, rank + 1.0);
      group.all_reduce(tensor).wait();
      // The fake backend leaves a tensor as it is.
      const double expected = backend == "fake" ? rank + 1.0 : 3.0;
      if (!(tensor == expected).all().item<bool>()) problems[rank] = "the sum is wrong";
    } catch (const std::exception& error) {
      problems[rank] = error.what();
    }
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
  return problems[0].empty() ? problems[1] : problems[0];
}

// Backends that want a process and a device or a launcher of their own for each rank.
std::string try_alone(const std::string& backend) {
  try {
    make_communicator(c10::make_intrusive<c10d::HashStore>(), 0, 1,
                      {.backend = backend, .device_index = backend == "nccl" ? 0 : -1})
        .barrier();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

Json verdict(const std::string& problem, const char* shown) {
  return {{"usable", problem.empty()}, {"reason", problem.empty() ? shown : problem}};
}

}  // namespace

Json machine_facts() {
  return {{"versions", version_facts()},
          {"system", system_facts()},
          {"cpus", cpu_facts()},
          {"gpus", gpu_facts()}};
}

Json backend_facts() {
  Json facts = Json::object();
  for (const char* backend : {"shm", "gloo", "fake"}) {
    facts[backend] = verdict(try_pair(backend), "all-reduce between two ranks is right");
  }
  for (const char* backend : {"mpi", "nccl"}) facts[backend] = verdict(try_alone(backend), "loads");
  return facts;
}

}  // namespace lockstep::cli
