#include "recipes/rank_places.h"

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/launch.h>
#include <lockstep/trainer.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "comm/plugin.h"
#include "track/gpu_monitor.h"

namespace lockstep::recipes {

RankPlace own_place(const World& world) {
  const RankMap& map = world.map();
  RankPlace place;
  // Where nobody tells the node, the host is one.
  place.node = map.node_rank >= 0 && map.num_nodes > 0 ? std::to_string(map.node_rank) : map.host;
  if (world.device().is_cuda()) {
    place.gpu_uuid = comm::list_cuda_devices().at(static_cast<size_t>(world.device().index())).uuid;
  }
  return place;
}

std::vector<RankPlace> gather_places(const World& world) {
  const RankPlace own = own_place(world);
  std::vector<RankPlace> places;
  for (const std::string& rank : world.communicator().all_gather_bytes(own.node + '\n' + own.gpu_uuid)) {
    const size_t end = rank.find('\n');
    places.push_back({rank.substr(0, end), rank.substr(end + 1)});
  }
  return places;
}

JobShape job_shape(std::span<const RankPlace> ranks) {
  std::map<std::string, std::set<std::string>> gpus_of;
  for (const RankPlace& rank : ranks) {
    std::set<std::string>& gpus = gpus_of[rank.node];
    if (!rank.gpu_uuid.empty()) gpus.insert(rank.gpu_uuid);
  }
  JobShape shape;
  shape.processes = static_cast<int>(ranks.size());
  shape.nodes = static_cast<int>(gpus_of.size());
  for (const auto& [node, gpus] : gpus_of) {
    shape.gpus += static_cast<int>(gpus.size());
    shape.gpus_per_node = std::max(shape.gpus_per_node, static_cast<int>(gpus.size()));
  }
  return shape;
}

bool is_first_on_gpu(std::span<const RankPlace> ranks, int rank) {
  const RankPlace& own = ranks[static_cast<size_t>(rank)];
  if (own.gpu_uuid.empty()) return false;
  const auto before = ranks.first(static_cast<size_t>(rank));
  return std::none_of(before.begin(), before.end(), [&](const RankPlace& other) {
    return other.node == own.node && other.gpu_uuid == own.gpu_uuid;
  });
}

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
