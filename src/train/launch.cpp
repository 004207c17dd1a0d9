#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "base/environment.h"
#include "base/log.h"
#include "base/progress.h"
#include "cluster/memory_room.h"
#include "cluster/placement.h"
#include "cluster/topology.h"
#include "launch/agent/spawn.h"
#include "train/join.h"
#include "train/main_rank.h"

namespace lockstep {
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
  } catch (const train::AgreedError&) {
    throw;
  } catch (const ConfigError& error) {
    train::throw_once(*world, error);
  }
  // Nobody leaves while another still needs it.
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
