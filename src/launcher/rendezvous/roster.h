#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job.h"
#include "launcher/stall.h"

namespace lockstep::launcher {

// The id of one connection to the coordinator; never reused.
using MemberId = uint64_t;

// A launcher that asks to join.
struct Candidate {
  NodeInfo node;
  std::string instance;            // different for every membership
  bool hosts_coordinator = false;  // the coordinator runs in this launcher's process
};

struct Member {
  Candidate candidate;
  uint64_t arrival = 0;
  // Its place in the order of nodes: the one it asked for, or the first free one when it
  // first takes part in a generation. It keeps the place.
  std::optional<int> place;

  // About the generation that runs, is being stopped, or ran last.
  bool takes_part = false;
  int node_rank = 0;
  bool succeeded = false;
  bool stopped = false;
  std::optional<std::chrono::steady_clock::time_point> stop_by;  // after this time it counts as lost

  // The last progress report of its workers, when it came, and whether none of them had
  // progressed for the stall timeout.
  std::vector<RankView> workers;
  std::chrono::steady_clock::time_point workers_seen;
  bool workers_idle = false;

  int port_requests = 0;       // not answered yet
  std::optional<int> leaving;  // the signal
  // Contact is lost; from this time on none of its workers runs.
  std::optional<std::chrono::steady_clock::time_point> lost;

  bool available() const { return !leaving && !lost; }
};

// The launchers of a job and the order of its nodes.
class Roster {
 public:
  // Why this launcher cannot join, or nullopt.
  std::optional<std::string> reason_to_refuse(const Candidate& candidate, int max_nodes) const;
  void add(MemberId id, const Candidate& candidate);
  void erase(MemberId id) { members_.erase(id); }

  Member* find(MemberId id);
  std::map<MemberId, Member>& members() { return members_; }
  const std::map<MemberId, Member>& members() const { return members_; }
  int num_available() const;
  bool has_host() const;
  // "node3 (10.0.0.3), node1 (10.0.0.1)", in order of arrival.
  std::string describe() const;

  // At most max_nodes available members in the order of their places, chosen by this
  // precedence: members of the previous generation, the launcher that hosts the coordinator,
  // members that asked for a place, early arrivals. Assigns places to those without one.
  std::vector<MemberId> select(int max_nodes);

 private:
  void assign_places(const std::vector<MemberId>& selected);

  std::map<MemberId, Member> members_;
  uint64_t next_arrival_ = 0;
};

// "node 2 (gpu07)".
std::string name_of(const Member& member);

}  // namespace lockstep::launcher
