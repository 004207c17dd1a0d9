#include "train/join.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/version.h>

#include <lockstep/json.h>

#include "base/environment.h"
#include "base/log.h"
#include "cluster/topology.h"
#include "comm/plugin.h"
#include "train/allocator.h"
#include "train/device.h"

namespace lockstep::train {
namespace {

// Under srun and mpirun every rank would take all cores for itself.
void share_cores(const RankMap& map) {
  const base::Environment environment = base::Environment::of_process();
  if (!environment.has("OMP_NUM_THREADS")) {
    at::set_num_threads(cluster::threads_of_this_process(environment, map.local_world_size));
  }
}

CommunicatorOptions communicator_options(const TrainConfig& config, c10::Device device) {
  CommunicatorOptions options;
  options.backend = config.backend;
  options.timeout = std::chrono::seconds(config.timeout_s);
  options.device_index = device.is_cuda() ? device.index() : -1;
  return options;
}

// A job whose ranks disagree about what they are must not start to train.
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
  // Before anything runs on the device: autograd remembers the stream of each parameter.
  if (config.cuda_graph && device.is_cuda()) comm::use_own_cuda_stream(device.index());
  share_cores(map);
  keep_freed_memory();
  auto world =
      std::make_unique<World>(map, Communicator::connect(map, communicator_options(config, device)), device);
  check_agreement(*world);
  return world;
}

}  // namespace lockstep::train
