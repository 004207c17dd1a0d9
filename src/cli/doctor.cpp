#include "cli/doctor.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <lockstep/json.h>

#include "base/environment.h"
#include "cli/machine_facts.h"
#include "cluster/allocation_check.h"
#include "cluster/devices.h"
#include "cluster/node_resources.h"
#include "cluster/placement.h"

namespace lockstep::cli {
namespace {

struct DoctorOptions {
  bool json = false;
  std::string backend = "auto";
  std::string compute_setup = "auto";
};

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

// Every rank adds its number in a place of its own.
Json self_test(const World& world) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat64).device(world.device());
  const at::Tensor tensor = torch::zeros({world.size()}, options);
  tensor[world.rank()] = world.rank() + 1;
  world.communicator().all_reduce(tensor).wait();
  const bool right = torch::equal(tensor, torch::arange(1, world.size() + 1, options));
  return {{"operation", "all_reduce"}, {"backend", world.communicator().backend()}, {"ok", right}};
}

// What the ranks of this node lack in the allocation, with the flag to change.
Json allocation_facts(const World& world) {
  const base::Environment environment = base::Environment::of_process();
  cluster::AllocationFacts facts = cluster::facts_of_process(environment, world.map().local_world_size,
                                                             cluster::count_visible_gpus(environment));
  facts.wants_gpu |= world.device().is_cuda();
  const std::vector<std::string> problems = cluster::check_allocation(world.map(), environment, facts);
  return problems.empty() ? Json("fits") : Json(problems);
}

Json rank_facts(const World& world) {
  Json facts = {{"machine", machine_facts()},
                {"map", map_facts(world.map())},
                {"device", world.device().str()},
                {"allocation", allocation_facts(world)}};
  facts["self_test"] = self_test(world);
  return facts;
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

std::string backend_text(const Json& backends) {
  std::string text = "backends:\n";
  for (const auto& [name, facts] : backends.items()) {
    text += fmt::format("  {:<6} {:<4} {}\n", name, facts.at("usable").get<bool>() ? "yes" : "no",
                        facts.at("reason").get<std::string>());
  }
  return text;
}

void print_text(const Json& report) {
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
      print_text(report);
    }
  });
  if (status != kExitSuccess) return status;
  return healthy ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_doctor(CLI::App& app, int* status) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "what this machine and this allocation can do, rank by rank");
  command->add_flag("--json", options->json, "print JSON");
  command->add_option("--backend", options->backend, "auto, shm, gloo, mpi, nccl: of the self-test")
      ->capture_default_str();
  command->add_option("--compute-setup,--compute_setup", options->compute_setup, "cpu, gpu, auto")
      ->capture_default_str();
  command->callback([options, status] { *status = examine(*options); });
}

}  // namespace lockstep::cli
