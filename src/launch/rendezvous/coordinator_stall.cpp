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
  std::vector<Member*> members(map_->nodes.size());
  for (auto& [id, member] : roster_.members()) {
    if (!member.takes_part) continue;
    if (!member.workers_quiet) stall_told_ = false;
    // Twice as old as it should be: it may have moved since.
    const bool known = !member.workers.empty() && now - member.workers_seen <= options_.stall_timeout / 2;
    if (!known || !member.workers_quiet) return;
    members[static_cast<size_t>(member.node_rank)] = &member;
  }
  if (stall_told_) return;
  std::vector<RankView> ranks;
  for (const Member* member : members) {
    for (const RankView& worker : member->workers) {
      ranks.push_back(worker);
      ranks.back().rank = static_cast<int>(ranks.size()) - 1;
      ranks.back().host = member->candidate.node.host;
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
