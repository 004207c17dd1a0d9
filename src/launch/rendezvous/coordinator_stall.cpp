// What the workers of all nodes are doing, and when nobody moves.

#include <algorithm>
#include <iterator>
#include <utility>

#include "launch/rendezvous/coordinator.h"

namespace lockstep::launcher {

void Coordinator::progress(Time now, MemberId id, int generation, std::vector<RankView> workers) {
  Member* member = participant(id, generation);
  if (member == nullptr || phase_ != Phase::kRunning) return;
  if (workers.size() != static_cast<size_t>(member->candidate.node.local_world_size)) return;
  member->workers = std::move(workers);
  member->workers_seen = now;
  member->workers_quiet = all_quiet(member->workers, options_.stall_timeout);
  consider_stall(now);
}

void Coordinator::consider_stall(Time now) {
  // One whose workers have succeeded may have left or died since.
  std::vector<const Member*> members(map_->nodes.size());
  for (const auto& [id, member] : roster_.members()) {
    if (!member.takes_part || member.lost) continue;
    if (!member.workers_quiet) stall_told_ = false;
    // Twice as old as it should be: it may have moved since.
    const bool known = !member.workers.empty() && now - member.workers_seen <= options_.stall_timeout / 2;
    if (!known || !member.workers_quiet) return;
    members[static_cast<size_t>(member.node_rank)] = &member;
  }
  if (stall_told_) return;
  std::vector<RankView> ranks;
  for (size_t node = 0; node < members.size(); ++node) {
    for (int i = 0; i < map_->nodes[node].local_world_size; ++i) {
      RankView& view = ranks.emplace_back();
      view.ended = true;
      if (members[node] != nullptr) view = members[node]->workers[static_cast<size_t>(i)];
      view.rank = static_cast<int>(ranks.size()) - 1;
      view.host = map_->nodes[node].host;
    }
  }
  std::optional<Stall> stall = find_stall(ranks, options_.stall_timeout);
  if (!stall) return;
  stall_told_ = true;
  const auto shared = std::make_shared<const Stall>(*std::move(stall));
  for (const auto& [id, member] : roster_.members()) {
    if (member.takes_part && !member.lost) actions_.emplace_back(TellStall{id, generation_, shared});
  }
}

}  // namespace lockstep::launcher
