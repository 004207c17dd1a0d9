#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/rendezvous/coordinator.h"

namespace lockstep::launcher::testing_job {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline RendezvousOptions nodes(int min, int max, int max_restarts = 0) {
  RendezvousOptions options;
  options.min_nodes = min;
  options.max_nodes = max;
  options.max_restarts = max_restarts;
  options.join_timeout = seconds(60);
  options.last_call_timeout = seconds(10);
  return options;
}

// A coordinator, its clock, and all actions that it returned.
class Job {
 public:
  explicit Job(const RendezvousOptions& options, bool needs_host = false)
      : coordinator_(options, needs_host, now_) {}

  void join(MemberId id, std::optional<int> rank = std::nullopt, bool host = false, int local_world_size = 1,
            milliseconds stop_timeout = milliseconds(0)) {
    Candidate candidate;
    candidate.node.node_rank = rank;
    candidate.node.host = "host" + std::to_string(id);
    candidate.node.address = "10.0.0." + std::to_string(id);
    candidate.node.local_world_size = local_world_size;
    candidate.node.stop_timeout = stop_timeout;
    candidate.instance = "instance" + std::to_string(id);
    candidate.hosts_coordinator = host;
    join(id, candidate);
  }
  void join(MemberId id, const Candidate& candidate) {
    coordinator_.join(now_, id, candidate);
    collect();
  }
  void fail(MemberId id, int64_t time_us = 100, int code = 1) {
    JobFailure failure;
    failure.generation = generation();
    failure.rank = static_cast<int>(id);
    failure.time_us = time_us;
    failure.state = {.signaled = false, .code = code};
    coordinator_.worker_failed(now_, id, failure);
    collect();
  }
  void progress(MemberId id, const std::vector<RankView>& workers) {
    coordinator_.progress(now_, id, generation(), workers);
    collect();
  }
  void succeed(MemberId id) {
    coordinator_.succeeded(now_, id, generation());
    collect();
  }
  void stopped(MemberId id) {
    coordinator_.stopped(now_, id, generation());
    collect();
  }
  void stuck(MemberId id, const std::string& reason, int64_t time_us = 100) {
    coordinator_.stuck(now_, id, generation(), {reason, time_us, now_});
    collect();
  }
  void all_stopped() {
    for (const MemberId id : order()) stopped(id);
  }
  void leave(MemberId id, int signal = SIGTERM) {
    coordinator_.leave(now_, id, signal);
    collect();
  }
  void lose(MemberId id, milliseconds lease = milliseconds(0), int64_t time_us = 100) {
    coordinator_.lost(now_, id, {"the cable is out", time_us, now_ + lease});
    collect();
  }
  void answer_port(MemberId id, int generation, uint16_t port, const std::string& error = "") {
    coordinator_.store_port(now_, id, generation, port, error);
    collect();
  }
  // Lets time pass the way an event loop does: deadlines in between are kept.
  void pass(milliseconds time) {
    const Coordinator::Time end = now_ + time;
    while (const auto deadline = coordinator_.deadline()) {
      if (*deadline > end) break;
      now_ = std::max(now_, *deadline);
      coordinator_.tick(now_, /*time_us=*/100);
      collect();
    }
    now_ = end;
  }

  // The generation that was started last, and its members in the order of their ranks.
  int generation() const { return map_ ? map_->number : -1; }
  const Generation& map() const { return *map_; }
  std::vector<MemberId> order() const { return order_; }
  int num_starts() const { return num_starts_; }
  std::vector<Stop> stops;
  std::map<MemberId, std::vector<JobOutcome>> finishes;
  std::map<MemberId, std::string> refused;
  std::map<MemberId, std::vector<std::string>> notes;
  std::vector<Stalled> stalls;
  std::vector<ReserveStorePort> port_requests;
  bool answers_port_requests = true;
  const Coordinator& coordinator() const { return coordinator_; }

 private:
  void collect() {
    for (const Action& action : coordinator_.take_actions()) {
      if (const auto* a = std::get_if<Refused>(&action)) refused[a->to] = a->reason;
      if (const auto* a = std::get_if<Stop>(&action)) stops.push_back(*a);
      if (const auto* a = std::get_if<Note>(&action)) notes[a->to].push_back(a->text);
      if (const auto* a = std::get_if<Stalled>(&action)) stalls.push_back(*a);
      if (const auto* a = std::get_if<Finish>(&action)) finishes[a->to].push_back(a->outcome);
      if (const auto* a = std::get_if<ReserveStorePort>(&action)) port_requests.push_back(*a);
      if (const auto* a = std::get_if<Start>(&action)) note_start(*a);
    }
    if (!answers_port_requests) return;
    for (const ReserveStorePort& request : std::exchange(port_requests, {})) {
      answer_port(request.to, request.generation, 29500);
    }
  }
  void note_start(const Start& start) {
    if (start.generation != map_) {
      map_ = start.generation;
      order_.clear();
      ++num_starts_;
    }
    EXPECT_EQ(start.node_rank, static_cast<int>(order_.size()));
    order_.push_back(start.to);
  }

  Coordinator::Time now_;
  Coordinator coordinator_;
  std::shared_ptr<const Generation> map_;
  std::vector<MemberId> order_;
  int num_starts_ = 0;
};

}  // namespace lockstep::launcher::testing_job
