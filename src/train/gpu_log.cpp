#include "train/gpu_log.h"

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/launch.h>
#include <lockstep/trainer.h>

#include <filesystem>

#include "track/gpu_monitor.h"
#include "train/rank_places.h"

namespace lockstep::train {
namespace {

std::filesystem::path gpu_log_file(const Trainer& trainer) {
  const int node = trainer.world().map().node_rank;
  const std::string name = node > 0 ? fmt::format("gpu_node{}.csv", node) : "gpu.csv";
  return std::filesystem::path(trainer.run_folder()) / name;
}

}  // namespace

std::vector<std::shared_ptr<Callback>> gpu_log(std::chrono::milliseconds period) {
  const auto monitor = std::make_shared<std::unique_ptr<track::GpuMonitor>>();
  const auto start = [monitor, period](Trainer& trainer) {
    const World& world = trainer.world();
    if (!world.device().is_cuda()) return;
    // A rank may see no GPU but its own, so each rank logs its own GPU.
    const auto begin = [&] {
      *monitor =
          std::make_unique<track::GpuMonitor>(gpu_log_file(trainer), own_place(world).gpu_uuid, period);
    };
    // One rank writes the header line of a node's file before the others open the file.
    const bool is_leader = world.local_rank() == 0;
    if (is_leader) begin();
    const std::vector<RankPlace> places = gather_places(world);
    if (!is_leader && is_first_on_gpu(places, world.rank())) begin();
  };
  const auto stop = [monitor](Trainer&) { monitor->reset(); };
  return {std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainStart}, start),
          std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainEnd}, stop)};
}

}  // namespace lockstep::train
