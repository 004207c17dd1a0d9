#include "recipes/gpu_log.h"

#include <fmt/format.h>
#include <lockstep/callback.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>

#include <filesystem>

#include "recipes/job_shape.h"
#include "track/gpu_monitor.h"

namespace lockstep::recipes {
namespace {

std::filesystem::path log_file(const Trainer& trainer) {
  const int node = trainer.world().map().node_rank;
  const std::string name = node > 0 ? fmt::format("gpu_node{}.csv", node) : "gpu.csv";
  return std::filesystem::path(trainer.run_folder()) / name;
}

}  // namespace

GpuLog::GpuLog() {
  const auto monitor = std::make_shared<std::unique_ptr<track::GpuMonitor>>();
  start = std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainStart}, [monitor](Trainer& trainer) {
    const World& world = trainer.world();
    if (!world.device().is_cuda()) return;
    const auto begin = [&] {
      *monitor = std::make_unique<track::GpuMonitor>(log_file(trainer), own_place(world).gpu_uuid);
    };
    // A node's file gets its heading from one rank, before the others meet it.
    const bool is_leader = world.local_rank() == 0;
    if (is_leader) begin();
    const std::vector<RankPlace> places = gather_places(world);
    if (!is_leader && is_first_on_gpu(places, world.rank())) begin();
  });
  stop = std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainEnd},
                                    [monitor](Trainer&) { monitor->reset(); });
}

}  // namespace lockstep::recipes
