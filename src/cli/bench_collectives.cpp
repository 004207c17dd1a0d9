#include "cli/bench_collectives.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <lockstep/json.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "base/environment.h"
#include "cluster/node_resources.h"
#include "cluster/placement.h"
#include "comm/communicator_internal.h"

namespace lockstep::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct CollectivesOptions {
  std::optional<int> nprocs;
  std::string backend = "auto";
  std::string compute_setup = "cpu";
  std::vector<std::string> operations = {"all_reduce"};
  std::vector<uint64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
  int repeats = 5;
  bool json = false;
};

// One measured row. Bandwidths as nccl-tests define them: algorithm = bytes / time;
// bus = algorithm times comm::bus_factor.
struct CollectivesRow {
  std::string operation;
  uint64_t bytes = 0;
  double latency_us = 0;  // median over the repeats
  double lowest_us = 0;
  double highest_us = 0;
  double algorithm_gbps = 0;  // gigabytes a second
  double bus_gbps = 0;
};

struct Operation {
  const char* name;
  // A tensor of `bytes` in all; returns what one call does.
  std::function<void()> (*prepare)(const World&, int64_t numel);
};

std::function<void()> prepare_all_reduce(const World& world, int64_t numel) {
  const at::Tensor like = torch::empty({0}, torch::TensorOptions().device(world.device()));
  const at::Tensor tensor = world.communicator().allocate(numel, like);
  tensor.zero_();
  return [&world, tensor] { world.communicator().all_reduce(tensor).wait(); };
}

std::function<void()> prepare_broadcast(const World& world, int64_t numel) {
  const at::Tensor tensor = torch::zeros({numel}, torch::TensorOptions().device(world.device()));
  return [&world, tensor] { world.communicator().broadcast(tensor).wait(); };
}

std::function<void()> prepare_all_gather(const World& world, int64_t numel) {
  const int64_t block = std::max<int64_t>(1, numel / world.size());
  const auto options = torch::TensorOptions().device(world.device());
  const at::Tensor input = torch::zeros({block}, options);
  const at::Tensor output = torch::zeros({block * world.size()}, options);
  return [&world, input, output] { world.communicator().all_gather(output, input).wait(); };
}

std::function<void()> prepare_reduce_scatter(const World& world, int64_t numel) {
  const int64_t block = std::max<int64_t>(1, numel / world.size());
  const auto options = torch::TensorOptions().device(world.device());
  const at::Tensor input = torch::zeros({block * world.size()}, options);
  const at::Tensor output = torch::zeros({block}, options);
  return [&world, input, output] { world.communicator().reduce_scatter(output, input).wait(); };
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"all_reduce", prepare_all_reduce},
      {"broadcast", prepare_broadcast},
      {"all_gather", prepare_all_gather},
      {"reduce_scatter", prepare_reduce_scatter},
  };
  return all;
}

const Operation& find_operation(const std::string& name) {
  for (const Operation& operation : operations()) {
    if (name == operation.name) return operation;
  }
  throw ConfigError(
      "cli",
      fmt::format("--operations must be of all_reduce, broadcast, all_gather, reduce_scatter: '{}'", name));
}

// Every rank runs equally many calls, so the count depends on the size alone.
int calls_of(uint64_t bytes) {
  return static_cast<int>(std::clamp<uint64_t>((64 << 20) / (bytes + 64 * 1024), 3, 500));
}

double time_us(const std::function<void()>& call, int calls) {
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
}

CollectivesRow measure(const World& world, const Operation& operation, uint64_t bytes, int repeats) {
  const int64_t numel = static_cast<int64_t>(std::max<uint64_t>(1, bytes / sizeof(float)));
  const std::function<void()> call = operation.prepare(world, numel);
  const int calls = calls_of(bytes);
  time_us(call, calls);  // warm-up
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    world.communicator().barrier();
    times.push_back(time_us(call, calls));
  }
  std::sort(times.begin(), times.end());
  CollectivesRow row;
  row.operation = operation.name;
  row.bytes = bytes;
  row.latency_us = times[times.size() / 2];
  row.lowest_us = times.front();
  row.highest_us = times.back();
  row.algorithm_gbps = static_cast<double>(bytes) / (row.latency_us * 1e3);
  row.bus_gbps = row.algorithm_gbps * comm::bus_factor(operation.name, world.size());
  return row;
}

void print_table(const World& world, const std::vector<CollectivesRow>& rows) {
  fmt::print("{} ranks, backend {}\n{:<15}{:>12}{:>14}{:>22}{:>14}{:>14}\n", world.size(),
             world.communicator().backend(), "operation", "bytes", "median us", "min..max us", "algo GB/s",
             "bus GB/s");
  for (const CollectivesRow& row : rows) {
    fmt::print("{:<15}{:>12}{:>14.1f}{:>22}{:>14.3f}{:>14.3f}\n", row.operation, row.bytes, row.latency_us,
               fmt::format("{:.1f}..{:.1f}", row.lowest_us, row.highest_us), row.algorithm_gbps,
               row.bus_gbps);
  }
}

void print_json(const World& world, const std::vector<CollectivesRow>& rows) {
  Json result = {
      {"ranks", world.size()}, {"backend", world.communicator().backend()}, {"rows", Json::array()}};
  for (const CollectivesRow& row : rows) {
    result["rows"].push_back({{"operation", row.operation},
                              {"bytes", row.bytes},
                              {"latency_us", row.latency_us},
                              {"lowest_us", row.lowest_us},
                              {"highest_us", row.highest_us},
                              {"algorithm_gbps", row.algorithm_gbps},
                              {"bus_gbps", row.bus_gbps}});
  }
  fmt::print("{}\n", result.dump(2));
}

// Two, unless a launcher says how many there are.
std::optional<int> default_nprocs() {
  const cluster::Placement placement =
      cluster::decide_placement({}, base::Environment::of_process(), cluster::host_name());
  if (placement.map.launcher == Launcher::kSingle) return 2;
  return std::nullopt;
}

int bench_collectives(const CollectivesOptions& options) {
  for (const std::string& name : options.operations) find_operation(name);
  TrainConfig config;
  config.nprocs = options.nprocs ? options.nprocs : default_nprocs();
  config.backend = options.backend;
  config.compute_setup = options.compute_setup;
  return launch(config, [&](World& world) {
    std::vector<CollectivesRow> rows;
    for (const std::string& name : options.operations) {
      for (const uint64_t bytes : options.sizes) {
        rows.push_back(measure(world, find_operation(name), bytes, options.repeats));
      }
    }
    if (!world.is_main()) return;
    options.json ? print_json(world, rows) : print_table(world, rows);
  });
}

}  // namespace

void add_bench_collectives(CLI::App& bench, int* status) {
  auto options = std::make_shared<CollectivesOptions>();
  CLI::App* command = bench.add_subcommand("collectives", "time and bandwidth of collectives between ranks");
  command->add_option("-n,--nprocs", options->nprocs,
                      "processes to start; default: 2 where no launcher started some");
  command->add_option("--backend", options->backend, "auto, shm, gloo, mpi, nccl")->capture_default_str();
  command->add_option("--compute-setup,--compute_setup", options->compute_setup, "cpu, gpu, auto")
      ->capture_default_str();
  command
      ->add_option("--operations", options->operations, "all_reduce, broadcast, all_gather, reduce_scatter")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--sizes", options->sizes, "bytes: 4K, 1M, ...")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "measurements of each row")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, status] { *status = bench_collectives(*options); });
}

}  // namespace lockstep::cli
