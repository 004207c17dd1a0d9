#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <thread>

#include "cli/commands.h"
#include "cli/machine_facts.h"
#include "comm/plugin.h"

namespace lockstep::cli {
namespace {

// --- the machine ---

Json machine_version_facts() {
  Json facts = version_facts();
  facts["libtorch"] = TORCH_VERSION;
  return facts;
}

Json machine_cpu_facts() {
  Json facts = cpu_facts();
  facts["libtorch threads"] = at::get_num_threads();
  return facts;
}

Json cuda_gpu_facts() {
  Json devices = Json::object();
  int index = 0;
  for (const comm::CudaDevice& device : comm::list_cuda_devices()) {
    devices[fmt::format("cuda:{}", index++)] = fmt::format("{} {}", device.name, device.uuid);
  }
  return devices;
}

Json gpu_facts() {
  Json devices = Json::object();
  std::string problem = "the CUDA library loads and finds no device";
  try {
    devices = cuda_gpu_facts();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  try {
    devices.update(amd_gpu_facts());
  } catch (const std::exception& error) {
    devices["amd"] = fmt::format("none: {}", error.what());
  }
  return devices.empty() ? Json("none: " + problem) : devices;
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

// What this process sees of its machine: versions, CPUs, memory, GPUs. Throws nothing: what cannot be read is
// a text in its place.
Json machine_facts() {
  return {{"versions", machine_version_facts()},
          {"system", system_facts()},
          {"cpus", machine_cpu_facts()},
          {"gpus", gpu_facts()}};
}

// Every backend by name: {"usable": bool, "reason": text, "check": text}. Usable ones have reduced real data
// between two ranks (as threads of this process), or one rank where the backend allows no more.
Json backend_facts() {
  Json facts = Json::object();
  for (const char* backend : {"shm", "gloo", "fake"}) {
    facts[backend] = verdict(try_pair(backend), "all-reduce between two ranks is right");
  }
  for (const char* backend : {"mpi", "nccl"}) facts[backend] = verdict(try_alone(backend), "loads");
  return facts;
}

// --- the ranks ---

// Every rank adds its number in a place of its own.
Json self_test(const World& world) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat64).device(world.device());
  const at::Tensor tensor = torch::zeros({world.size()}, options);
  tensor[world.rank()] = world.rank() + 1;
  world.communicator().all_reduce(tensor).wait();
  const bool right = torch::equal(tensor, torch::arange(1, world.size() + 1, options));
  return {{"operation", "all_reduce"}, {"backend", world.communicator().backend()}, {"ok", right}};
}

Json rank_facts(const World& world) {
  Json facts = {{"machine", machine_facts()},
                {"map", map_facts(world.map())},
                {"device", world.device().str()},
                {"allocation", allocation_facts(world.map(), world.device().is_cuda())}};
  facts["self_test"] = self_test(world);
  return facts;
}

std::string backend_text(const Json& backends) {
  std::string text = "backends:\n";
  for (const auto& [name, facts] : backends.items()) {
    text += fmt::format("  {:<6} {:<4} {}\n", name, facts.at("usable").get<bool>() ? "yes" : "no",
                        facts.at("reason").get<std::string>());
  }
  return text;
}

void print_report(const Json& report) {
  const Json& ranks = report.at("ranks");
  for (const Json& rank : ranks) {
    fmt::print("rank {} of {}\n{}", rank.at("map").at("rank").get<int>(), ranks.size(), indented(rank, 1));
  }
  fmt::print("{}", backend_text(report.at("backends")));
}

int examine(const DoctorOptions& options) {
  TrainConfig config;
  config.backend = options.backend;
  config.compute_setup = options.compute_setup;
  bool healthy = true;
  const int status = launch(config, [&](World& world) {
    const std::vector<std::string> ranks = world.communicator().all_gather_bytes(rank_facts(world).dump());
    if (!world.is_main()) return;
    Json report = {{"ranks", Json::array()}, {"backends", backend_facts()}};
    for (const std::string& facts : ranks) {
      report["ranks"].push_back(Json::parse(facts));
      healthy = healthy && report["ranks"].back().at("self_test").at("ok").get<bool>();
    }
    if (options.json) {
      fmt::print("{}\n", report.dump(2));
    } else {
      print_report(report);
    }
  });
  if (status != kExitSuccess) return status;
  return healthy ? kExitSuccess : kExitFailure;
}

}  // namespace

// What this machine and this allocation can do. Under a launcher every rank reports and rank 0 prints; alone
// it reports itself and tries every backend between two ranks.
int run_doctor(int argc, const char* const* argv) { return examine(parse_doctor(argc, argv)); }

}  // namespace lockstep::cli
