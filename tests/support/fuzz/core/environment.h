#pragma once

#include <lockstep/error.h>

#include <sstream>
#include <string>
#include <string_view>

#include "cluster/allocation_check.h"
#include "cluster/placement.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// Lines of NAME=VALUE.
inline base::Environment parse_environment(std::string_view text) {
  base::Environment environment;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos && equals > 0) {
      environment.set(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return environment;
}

inline bool takes_environment(std::string_view bytes) {
  const base::Environment environment = parse_environment(bytes);
  try {
    const cluster::Placement placement = cluster::decide_placement({}, environment, "n1");
    require(!placement.spawn.has_value(), "nobody asked for more ranks");
    const RankMap& map = placement.map;
    require(0 <= map.rank && map.rank < map.world_size, "the rank is in the world");
    require(0 <= map.local_rank && map.local_rank < map.local_world_size, "the local rank is on the node");
    require(map.local_world_size <= map.world_size, "a node is a part of the world");
    require(map.num_nodes > 0 ? 0 <= map.node_rank && map.node_rank < map.num_nodes : map.node_rank == -1,
            "the node is one of the nodes");
    require(map.world_size == 1 || map.rendezvous.kind != Rendezvous::Kind::kNone,
            "several ranks have a place to meet");
    cluster::check_allocation(map, environment, {.wants_gpu = true, .visible_gpus = 1});
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
