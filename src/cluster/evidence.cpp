#include "cluster/evidence.h"

#include <fmt/format.h>

#include "cluster/meeting.h"

namespace lockstep::cluster {

void check_nprocs(const Evidence& evidence, const RankMap& map, const Names& names) {
  if (!evidence.nprocs || *evidence.nprocs == map.world_size) return;
  evidence.variables.fail(fmt::format("nprocs={} contradicts {}, which started {} ranks", *evidence.nprocs,
                                      to_string(map.launcher), map.world_size),
                          names);
}

std::string assume_local_ranks(RankMap& map) {
  const bool here = map.world_size == 1 ||
                    (map.rendezvous.kind == Rendezvous::Kind::kTcp && is_loopback(map.rendezvous.address));
  map.local_rank = here ? map.rank : 0;
  map.local_world_size = here ? map.world_size : 1;
  if (here) return "";
  return "nothing tells how many ranks share this machine, so one is assumed: set LOCAL_RANK and "
         "LOCAL_WORLD_SIZE";
}

void complete(RankMap& map, const std::string& host) {
  map.host = host;
  if (map.local_world_size != map.world_size) return;
  map.node_rank = 0;
  map.num_nodes = 1;
  if (map.nodes.empty()) map.nodes = {host};
  map.ranks_per_node = {map.world_size};
}

}  // namespace lockstep::cluster
