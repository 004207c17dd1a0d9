#include "launcher/rendezvous/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace lockstep::launcher {

std::optional<std::string> Roster::reason_to_refuse(const Candidate& candidate, int max_nodes) const {
  const std::optional<int> rank = candidate.node.node_rank;
  if (rank && (*rank < 0 || *rank >= max_nodes)) {
    return fmt::format("node rank {} is not one of this job's: it has at most {}", *rank,
                       count_of(max_nodes, "node"));
  }
  for (const auto& [id, member] : members_) {
    if (member.lost) continue;
    if (member.candidate.instance == candidate.instance) {
      return fmt::format("this launcher has joined already: {}, process {}", candidate.node.host,
                         candidate.node.pid);
    }
    if (rank && member.place == rank) {
      return fmt::format("node rank {} is taken by {}, process {}: give every launcher another one", *rank,
                         member.candidate.node.host, member.candidate.node.pid);
    }
  }
  return std::nullopt;
}

void Roster::add(MemberId id, const Candidate& candidate) {
  Member member;
  member.candidate = candidate;
  member.arrival = next_arrival_++;
  member.place = candidate.node.node_rank;
  members_.emplace(id, std::move(member));
}

Member* Roster::find(MemberId id) {
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : &found->second;
}

int Roster::num_available() const {
  return static_cast<int>(
      std::count_if(members_.begin(), members_.end(), [](const auto& m) { return m.second.available(); }));
}

bool Roster::has_host() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& m) {
    return m.second.available() && m.second.candidate.hosts_coordinator;
  });
}

std::string Roster::describe() const {
  std::map<uint64_t, std::string> names;
  for (const auto& [id, member] : members_) {
    const NodeInfo& node = member.candidate.node;
    names[member.arrival] = fmt::format("{} ({})", node.host, node.address);
  }
  std::string text;
  for (const auto& [arrival, name] : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::vector<MemberId> Roster::select(int max_nodes) {
  std::vector<MemberId> selected;
  for (const auto& [id, member] : members_) {
    if (member.available()) selected.push_back(id);
  }
  const auto precedence = [this](MemberId id) {
    const Member& member = members_.at(id);
    return std::tuple(!member.takes_part, !member.candidate.hosts_coordinator, !member.place, member.arrival);
  };
  std::sort(selected.begin(), selected.end(),
            [&](MemberId a, MemberId b) { return precedence(a) < precedence(b); });
  if (selected.size() > static_cast<size_t>(max_nodes)) selected.resize(static_cast<size_t>(max_nodes));

  assign_places(selected);
  std::sort(selected.begin(), selected.end(),
            [this](MemberId a, MemberId b) { return members_.at(a).place < members_.at(b).place; });
  return selected;
}

void Roster::assign_places(const std::vector<MemberId>& selected) {
  std::set<int> taken;
  for (const auto& [id, member] : members_) {
    if (member.place && !member.lost) taken.insert(*member.place);
  }
  int next = 0;
  for (const MemberId id : selected) {
    Member& member = members_.at(id);
    if (member.place) continue;
    while (taken.count(next) > 0) ++next;
    member.place = next++;
  }
}

std::string name_of(const Member& member) {
  return fmt::format("node {} ({})", member.node_rank, member.candidate.node.host);
}

}  // namespace lockstep::launcher
