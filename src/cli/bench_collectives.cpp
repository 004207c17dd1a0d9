#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <lockstep/json.h>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/environment.h"
#include "base/number.h"
#include "cli/commands.h"
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
  std::vector<uint64_t> sizes;  // bytes
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
  const auto found = std::find_if(operations().begin(), operations().end(),
                                  [&](const Operation& operation) { return name == operation.name; });
  base::check(found != operations().end(), "the option table checks the names");
  return *found;
}

// "4096", "4K", "4KB" and "4KiB" are the same: every unit is a power of 1024.
uint64_t parse_size(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string unit = text.substr(digits);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
  if (unit.ends_with("IB") && unit.size() == 3) unit.erase(1);
  if (unit.ends_with('B')) unit.pop_back();
  const size_t power = std::string("KMGT").find(unit);
  const auto number = base::parse_integer(text.substr(0, digits));
  const bool has_unit = !unit.empty();
  const int shift = has_unit ? 10 * (static_cast<int>(power) + 1) : 0;
  const bool is_valid = number && unit.size() <= 1 && power != std::string::npos &&
                        *number <= (std::numeric_limits<int64_t>::max() >> (has_unit ? shift : 0));
  if (!is_valid) {
    throw ConfigError("cli", fmt::format("--sizes must be numbers of bytes, as 4096, 4K or 1M: '{}'", text));
  }
  return static_cast<uint64_t>(*number) << shift;
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

// Time and bandwidth of each collective, size and backend between the ranks of a job, or between --nprocs
// processes started here.
int run_bench_collectives(int argc, const char* const* argv) {
  CollectivesOptions options;
  std::vector<std::string> sizes = {"4K", "64K", "1M", "16M"};
  std::vector<std::string> names;
  for (const Operation& operation : operations()) names.emplace_back(operation.name);
  config::OptionTable("Measures time and bandwidth of collectives between ranks.", config::kNoVariables)
      .add("nprocs", options.nprocs, "processes to start; left out: 2 where no launcher started some",
           {.short_flag = "n"})
      .add("backend", options.backend, "of the collectives",
           {.choices = {"auto", "shm", "gloo", "mpi", "nccl", "fake"}})
      .add("compute_setup", options.compute_setup, "device", {.choices = {"cpu", "gpu", "auto"}})
      .add("operations", options.operations, "collectives to measure", {.choices = names, .several = true})
      .add("sizes", sizes, "bytes: 4K, 1M, ...", {.several = true})
      .add("repeats", options.repeats, "measurements of each row", {.minimum = 1, .maximum = 1000})
      .add("json", options.json, "print JSON", {.negatable = false})
      .parse(argc, argv);
  for (const std::string& size : sizes) options.sizes.push_back(parse_size(size));
  return bench_collectives(options);
}

}  // namespace lockstep::cli
