#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <lockstep/config.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <lockstep/version.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/environment.h"
#include "base/job_token.h"
#include "base/log.h"
#include "base/network.h"
#include "base/progress.h"
#include "cluster/allocation_check.h"
#include "cluster/node_resources.h"
#include "cluster/placement.h"
#include "comm/agree.h"
#include "comm/gloo_device.h"
#include "comm/plugin.h"
#include "launcher/agent/run_job.h"
#include "launcher/error_file.h"
#include "torch_private/onednn.h"
#include "train/device.h"

namespace lockstep {
namespace {

// torchrun and `lockstep run` read this file to report why a worker failed.
void leave_error_file(const std::string& message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  launcher::write_error_file(path, {.message = message, .timestamp_s = seconds});
}

int leave(const std::string& message, int status) {
  try {
    leave_error_file(message);
  } catch (const std::exception& error) {
    base::log_warning("launch", "the error file was not written: {}", error.what());
  }
  return status;
}

int print_and_leave(const std::string& message, int status) {
  const std::string line = base::log_prefix() + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return leave(message, status);
}

}  // namespace

int run_main(const std::function<int()>& body) noexcept {
  torch_private::avoid_undescribed_amx();
  try {
    return body();
  } catch (const HelpRequested& help) {
    std::fputs(help.what(), stdout);
    return kExitSuccess;
  } catch (const comm::ReportedElsewhere& error) {
    return leave(error.what(), kExitUsage);
  } catch (const ConfigError& error) {
    return print_and_leave(error.what(), kExitUsage);
  } catch (const Preempted& preempted) {
    // All ranks leave, and one of them reports it. No error file: this is not a failure.
    base::log_info("launch", "{}", preempted.what());
    return kExitPreempted;
  } catch (const CommError& error) {
    return print_and_leave(error.what(), kExitCommunication);
  } catch (const InternalError& error) {
    return print_and_leave(error.what(), kExitInternal);
  } catch (const c10::DistError& error) {
    // Of a store or a process group: rank 0 may have left, which is then the cause that the launcher reports.
    return print_and_leave(fmt::format("[comm] {}", error.what_without_backtrace()), kExitCommunication);
  } catch (const c10::Error& error) {
    return print_and_leave(fmt::format("[libtorch] {}", error.what_without_backtrace()), kExitFailure);
  } catch (const std::exception& error) {
    return print_and_leave(fmt::format("[program] {}", error.what()), kExitFailure);
  } catch (...) {
    return print_and_leave("[program] an exception that is no std::exception", kExitFailure);
  }
}

}  // namespace lockstep

namespace lockstep::train {

// Makes this process the rank of the map: chooses the device, connects to the peers, and checks that
// all ranks agree (world size, version, distinct devices). Blocks until all ranks are there.
// ConfigError, CommError.
std::unique_ptr<World> join_world(const RankMap& map, const TrainConfig& config);

namespace {

// Otherwise every rank would use all cores under srun and mpirun.
void share_cores(const RankMap& map) {
  const base::Environment environment = base::Environment::of_process();
  if (!environment.has("OMP_NUM_THREADS")) {
    at::set_num_threads(cluster::threads_of_this_process(environment, map.local_world_size));
  }
}

// 16-bit products are several times slower without AMX, and the operator of the machine can change that.
void warn_of_undescribed_amx(const RankMap& map, const TrainConfig& config, c10::Device device) {
  // A DeepSpeed configuration is read later, and often asks for 16 bits.
  const bool may_use_16_bits =
      config.precision != "fp32" || config.dtype.ends_with("16") || !config.deepspeed_config.empty();
  if (map.rank != 0 || !device.is_cpu() || !may_use_16_bits || !torch_private::avoid_undescribed_amx())
    return;
  base::log_warning(
      "launch",
      "this virtual machine has AMX and does not describe it (CPUID leaf 0x1d): 16-bit matrices "
      "are multiplied without AMX, which is slower; ask its operator to describe it");
}

// Once for each job. Under `lockstep run` the launcher does it.
void warn_of_allocation(const RankMap& map, c10::Device device) {
  if (map.rank != 0 || map.launcher != Launcher::kSlurm || !device.is_cuda()) return;
  const base::Environment environment = base::Environment::of_process();
  const cluster::AllocationFacts facts = cluster::facts_of_process(
      environment, map.local_world_size, static_cast<int>(comm::list_cuda_devices().size()));
  for (const std::string& problem : cluster::check_allocation(map, environment, facts)) {
    base::log_warning("launch", "{}", problem);
  }
}

CommunicatorOptions communicator_options(const TrainConfig& config, c10::Device device) {
  CommunicatorOptions options;
  options.backend = config.backend;
  options.timeout = std::chrono::seconds(config.timeout_s);
  options.device_index = device.is_cuda() ? device.index() : -1;
  return options;
}

// A job whose ranks have different versions, world sizes or backends must not start to train.
void check_agreement(const World& world) {
  const Json own = {
      {"version", kVersion}, {"world_size", world.size()}, {"backend", world.communicator().backend()}};
  const std::vector<std::string> all = world.communicator().all_gather_bytes(own.dump());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw ConfigError("launch", fmt::format("ranks 0 and {} do not run the same job: {} and {}", rank,
                                              all[0], all[rank]));
    }
  }
}

}  // namespace

std::unique_ptr<World> join_world(const RankMap& map, const TrainConfig& config) {
  if (config.local_rank >= 0 && config.local_rank != map.local_rank) {
    throw ConfigError("launch", fmt::format("--local_rank is {}, and this rank's local rank is {}: let the "
                                            "launcher set LOCAL_RANK, or leave the flag out",
                                            config.local_rank, map.local_rank));
  }
  base::set_log_identity({.rank = map.rank, .world_size = map.world_size, .host = map.host});
  const c10::Device device = choose_device(map, config.compute_setup);
  // Before anything runs on the device, because autograd stores the stream of each parameter.
  if (config.cuda_graph && device.is_cuda()) comm::use_own_cuda_stream(device.index());
  share_cores(map);
  warn_of_undescribed_amx(map, config, device);
  warn_of_allocation(map, device);
  keep_freed_memory();
  auto world =
      std::make_unique<World>(map, Communicator::connect(map, communicator_options(config, device)), device);
  check_agreement(*world);
  return world;
}

}  // namespace lockstep::train

namespace lockstep {

namespace {

void check_given(const GivenRanks& ranks) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError("launch", fmt::format("join_ranks: rank {} of {}: {}", ranks.rank, ranks.size, what));
  };
  if (ranks.size < 1 || ranks.rank < 0 || ranks.rank >= ranks.size) fail("the rank must be below the size");
  if (ranks.local_size < 1 || ranks.local_rank < 0 || ranks.local_rank >= ranks.local_size) {
    fail(fmt::format("local rank {} is not below the local size {}", ranks.local_rank, ranks.local_size));
  }
  if (ranks.hosts.size() != static_cast<size_t>(ranks.size)) {
    fail(fmt::format("there are {} hosts: give one for each rank", ranks.hosts.size()));
  }
  if (ranks.size > 1 && !ranks.broadcast) fail("broadcast is missing");
}

// The address at which rank 0's port is reached from all hosts.
std::string address_of_main_rank(const GivenRanks& ranks) {
  const std::string& own = ranks.hosts[0];
  const auto other = std::find_if(ranks.hosts.begin(), ranks.hosts.end(),
                                  [&](const std::string& host) { return host != own; });
  if (other == ranks.hosts.end()) return "127.0.0.1";
  const base::Environment environment = base::Environment::of_process();
  const bool is_chosen = !environment.get("GLOO_SOCKET_IFNAME").value_or("").empty();
  // The address would be loopback, where the other host waits for itself.
  if (!is_chosen && !comm::local_address_towards(*other)) {
    throw ConfigError("launch",
                      fmt::format("rank 0 on '{}' finds no way to '{}', the host of rank {}: let the "
                                  "name resolve there, or set GLOO_SOCKET_IFNAME to the network "
                                  "interface that connects them",
                                  own, *other, other - ranks.hosts.begin()));
  }
  return comm::numeric_local_address("", *other);
}

// Where rank 0 meets the others. Rank 0 opens the port.
Rendezvous open_rendezvous(const GivenRanks& ranks) {
  Rendezvous rendezvous;
  rendezvous.kind = Rendezvous::Kind::kTcp;
  rendezvous.address = address_of_main_rank(ranks);
  base::ListenSocket socket = base::listen_on_free_port(rendezvous.address);
  rendezvous.port = socket.port;
  rendezvous.listen_fd = socket.fd.release();
  rendezvous.secret = Rendezvous::Secret::kGiven;
  rendezvous.given_secret = base::make_token();
  return rendezvous;
}

// Tells the others rank 0's rendezvous, or why it has none.
Rendezvous share_rendezvous(const GivenRanks& ranks) {
  Rendezvous rendezvous;
  Json message = Json::object();
  if (ranks.rank == 0) {
    try {
      rendezvous = open_rendezvous(ranks);
      message = {
          {"address", rendezvous.address}, {"port", rendezvous.port}, {"secret", rendezvous.given_secret}};
    } catch (const ConfigError& error) {
      message = {{"error", error.what()}};
    }
  }
  std::string text = message.dump();
  ranks.broadcast(text);
  message = Json::parse(text);
  if (message.contains("error")) {
    const std::string& error = message.at("error").text();  // "[component] sentence"
    throw ConfigError("launch", error.substr(error.find("] ") + 2));
  }
  if (ranks.rank == 0) return rendezvous;
  rendezvous.kind = Rendezvous::Kind::kTcp;
  rendezvous.address = message.at("address").text();
  rendezvous.port = message.at("port").get<uint16_t>();
  rendezvous.secret = Rendezvous::Secret::kGiven;
  rendezvous.given_secret = message.at("secret").text();
  return rendezvous;
}

}  // namespace

std::unique_ptr<World> join_ranks(const GivenRanks& ranks, const TrainConfig& config) {
  check_given(ranks);
  RankMap map;
  map.launcher = Launcher::kExplicit;
  map.rank = ranks.rank;
  map.world_size = ranks.size;
  map.local_rank = ranks.local_rank;
  map.local_world_size = ranks.local_size;
  for (const std::string& host : ranks.hosts) {
    const auto found = std::find(map.nodes.begin(), map.nodes.end(), host);
    if (found == map.nodes.end()) {
      map.nodes.push_back(host);
      map.ranks_per_node.push_back(1);
    } else {
      ++map.ranks_per_node[static_cast<size_t>(found - map.nodes.begin())];
    }
  }
  map.num_nodes = static_cast<int>(map.nodes.size());
  map.host = ranks.hosts[static_cast<size_t>(ranks.rank)];
  map.node_rank =
      static_cast<int>(std::find(map.nodes.begin(), map.nodes.end(), map.host) - map.nodes.begin());
  if (ranks.size > 1) map.rendezvous = share_rendezvous(ranks);
  torch_private::avoid_undescribed_amx();
  return train::join_world(map, config);
}

int World::cpu_threads() const {
  return cluster::threads_of_this_process(base::Environment::of_process(), map_.local_world_size);
}

namespace {

cluster::Placement place(const TrainConfig& config) {
  cluster::PlacementRequest request;
  request.nprocs = config.nprocs;
  request.init_method = config.init_method;
  return cluster::decide_placement(request, base::Environment::of_process(), cluster::host_name());
}

void run_rank(const RankMap& map, const TrainConfig& config, const std::function<void(World&)>& rank_main) {
  base::Progress::of_process().set_phase(base::Phase::kConnecting);
  const std::unique_ptr<World> world = train::join_world(map, config);
  base::Progress::of_process().set_phase(base::Phase::kRunning);
  torch::manual_seed(config.seed);
  try {
    rank_main(*world);
  } catch (const comm::AgreedError&) {
    throw;
  } catch (const ConfigError& error) {
    comm::throw_once(world->communicator(), error);
  }
  // No rank leaves while another one still needs it.
  world->communicator().barrier();
}

}  // namespace

int launch(const TrainConfig& config, const std::function<void(World&)>& rank_main) {
  return run_main([&] {
    config.validate();
    const cluster::Placement placement = place(config);
    for (const std::string& warning : placement.warnings) base::log_warning("launch", "{}", warning);
    if (placement.spawn) {
      cluster::require_memory_for(placement.spawn->local_world_size);
      return launcher::spawn_ranks(*placement.spawn);
    }
    run_rank(placement.map, config, rank_main);
    return kExitSuccess;
  });
}

int launch(int argc, const char* const* argv, const TrainConfig& defaults,
           const std::function<void(World&, const TrainConfig&)>& rank_main) {
  return launch(argc, argv, defaults, {}, rank_main);
}

int launch(int argc, const char* const* argv, const TrainConfig& defaults, const ProgramOptions& own,
           const std::function<void(World&, const TrainConfig&)>& rank_main) {
  return run_main([&] {
    const TrainConfig config = TrainConfig::from_args(argc, argv, defaults, own);
    return launch(config, [&](World& world) { rank_main(world, config); });
  });
}

}  // namespace lockstep
