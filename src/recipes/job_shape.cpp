#include "recipes/job_shape.h"

#include <lockstep/world.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace lockstep::recipes {

JobShape job_shape(const World& world) {
  const RankMap& map = world.map();
  // Where nobody tells the node, the host is one.
  const std::string node = map.node_rank >= 0 && map.num_nodes > 0 ? std::to_string(map.node_rank) : map.host;
  const std::string own = node + '\n' + (world.device().is_cuda() ? world.device().str() : "");
  std::map<std::string, std::set<std::string>> gpus_of;
  for (const std::string& rank : world.communicator().all_gather_bytes(own)) {
    const size_t end = rank.find('\n');
    auto& gpus = gpus_of[rank.substr(0, end)];
    if (end + 1 < rank.size()) gpus.insert(rank.substr(end + 1));
  }
  JobShape shape;
  shape.processes = world.size();
  shape.nodes = static_cast<int>(gpus_of.size());
  for (const auto& [name, gpus] : gpus_of) {
    shape.gpus += static_cast<int>(gpus.size());
    shape.gpus_per_node = std::max(shape.gpus_per_node, static_cast<int>(gpus.size()));
  }
  return shape;
}

}  // namespace lockstep::recipes
