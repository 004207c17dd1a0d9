#include "train/rank_places.h"

#include <algorithm>
#include <map>
#include <set>

#include "comm/plugin.h"

namespace lockstep::train {

RankPlace own_place(const World& world) {
  const RankMap& map = world.map();
  RankPlace place;
  // A launcher may not say which node this is: then every host is a node.
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

JobShape shape_of(std::span<const RankPlace> ranks) {
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

}  // namespace lockstep::train

namespace lockstep {

std::string device_name(const World& world) {
  if (!world.device().is_cuda()) return world.device().str();
  return comm::list_cuda_devices().at(static_cast<size_t>(world.device().index())).name;
}

JobShape job_shape(const World& world) { return train::shape_of(train::gather_places(world)); }

}  // namespace lockstep
