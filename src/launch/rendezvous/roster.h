#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/job.h"
#include "launch/stall.h"

namespace lockstep::launcher {

// One connection to the coordinator; never used twice.
using MemberId = uint64_t;

// A launcher that asks to join.
struct Candidate {
  NodeInfo node;
  std::string instance;            // different for every membership
  bool hosts_coordinator = false;  // it is the launcher that the coordinator lives in
};

struct Member {
  Candidate candidate;
  uint64_t arrival = 0;
  // Its place in the order of nodes. The one it asked for, or the first free one when
  // it first becomes part of a generation; then it stays.
  std::optional<int> place;

  // The generation that runs or is being stopped, or that ran last.
  bool takes_part = false;
  int node_rank = 0;
  bool succeeded = false;
  bool stopped = false;
  std::optional<std::chrono::steady_clock::time_point> stop_by;  // else it counts as lost

  // What they did when it last told, and when that was.
  std::vector<RankView> workers;
  std::chrono::steady_clock::time_point workers_seen;
  bool workers_quiet = false;

  int port_requests = 0;       // not answered yet
  std::optional<int> leaving;  // the signal
  // Contact is lost; from this time on nothing of it runs any more.
  std::optional<std::chrono::steady_clock::time_point> lost;

  bool available() const { return !leaving && !lost; }
};

// The launchers of a job and the order of its nodes.
class Roster {
 public:
  // Why this one cannot join, or nullopt.
  std::optional<std::string> objection(const Candidate& candidate, int max_nodes) const;
  void add(MemberId id, const Candidate& candidate);
  void erase(MemberId id) { members_.erase(id); }

  Member* find(MemberId id);
  std::map<MemberId, Member>& members() { return members_; }
  const std::map<MemberId, Member>& members() const { return members_; }
  int num_available() const;
  bool has_host() const;
  // "node3 (10.0.0.3), node1 (10.0.0.1)", in order of arrival.
  std::string describe() const;

  // At most max_nodes available members in the order of their places. Who was part of
  // a generation before comes first, then the coordinator's own launcher, then who
  // asked for a place, then who came early. Places go to those that have none.
  std::vector<MemberId> select(int max_nodes);

 private:
  void assign_places(const std::vector<MemberId>& selected);

  std::map<MemberId, Member> members_;
  uint64_t next_arrival_ = 0;
};

// "node 2 (gpu07)".
std::string name_of(const Member& member);

}  // namespace lockstep::launcher
