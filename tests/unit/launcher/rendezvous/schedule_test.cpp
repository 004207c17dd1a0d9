// Whole jobs in virtual time: launchers come, crash, hang, are cut off and leave,
// workers fail, messages are slow. The schedule follows from the seed alone.

#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <csignal>
#include <functional>
#include <queue>
#include <random>

#include "launcher/rendezvous/coordinator.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Time = Coordinator::Time;

constexpr int kSeeds = 1000;
constexpr seconds kFaultsEnd{40};
constexpr seconds kEnd{600};

// Calls things at their time.
class VirtualTime {
 public:
  Time now() const { return now_; }
  void at(Time time, std::function<void()> call) {
    calls_.push({std::max(time, now_), next_++, std::move(call)});
  }
  void after(milliseconds delay, std::function<void()> call) { at(now_ + delay, std::move(call)); }
  void run(Time end) {
    while (!calls_.empty() && calls_.top().time <= end) {
      const Call next = calls_.top();
      calls_.pop();
      now_ = next.time;
      next.call();
    }
    now_ = end;
  }

 private:
  struct Call {
    Time time;
    uint64_t order;
    std::function<void()> call;
    bool operator<(const Call& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };
  Time now_;
  uint64_t next_ = 0;
  std::priority_queue<Call> calls_;
};

struct Node {
  MemberId id = 0;
  Candidate candidate;
  milliseconds slowness{0};

  bool process_lives = true;
  Time frozen_until;  // SIGSTOP
  Time cut_until;     // the cable is out
  bool joined = false;
  bool ended = false;  // finished, refused or lost contact
  bool lease_is_agreed = false;
  Time lease;
  std::vector<std::function<void()>> held;
  std::optional<int> workers;              // their generation
  Time last_arrival, last_answer_arrival;  // both directions are in order

  // The coordinator's side.
  bool connected = false;
  Time last_heartbeat;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), options_(random_options()) {
    coordinator_.emplace(options_, /*needs_host=*/false, time_.now());
    const int launchers = options_.max_nodes + pick(0, 2);
    const bool ranks_given = chance(30);
    nodes_.resize(static_cast<size_t>(launchers));
    for (int i = 0; i < launchers; ++i) plan(i, ranks_given);
    look_around();
  }

  void run() {
    time_.run(Time() + kEnd);
    EXPECT_TRUE(coordinator_->finished()) << "the job never ended";
    for (const Node& node : nodes_) {
      EXPECT_TRUE(node.ended || !node.process_lives) << "launcher " << node.id << " was never told the end";
      EXPECT_FALSE(node.workers && node.process_lives) << "workers survived on " << node.id;
    }
  }
  int num_generations() const { return static_cast<int>(maps_.size()); }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  milliseconds random_ms(int low, int high) { return milliseconds(pick(low, high)); }

  RendezvousOptions random_options() {
    RendezvousOptions options;
    options.max_nodes = pick(1, 6);
    options.min_nodes = pick(1, options.max_nodes);
    options.max_restarts = pick(0, 4);
    options.join_timeout = seconds(30);
    options.last_call_timeout = seconds(3);
    return options;
  }

  void plan(int index, bool ranks_given) {
    Node& node = nodes_[static_cast<size_t>(index)];
    node.id = static_cast<MemberId>(index + 1);
    node.candidate.node.host = "host" + std::to_string(index);
    node.candidate.node.address = node.candidate.node.host;
    node.candidate.node.local_world_size = pick(1, 4);
    node.candidate.instance = "instance" + std::to_string(index);
    node.candidate.hosts_coordinator = index == 0;
    if (ranks_given) node.candidate.node.node_rank = chance(95) ? index : pick(0, 7);
    if (chance(20)) node.slowness = milliseconds(300);
    time_.after(chance(80) ? random_ms(0, 2000) : random_ms(2000, 30000), [this, &node] { connect(node); });

    const auto fault_time = [this] {
      return random_ms(0, static_cast<int>(milliseconds(kFaultsEnd).count()));
    };
    if (chance(15)) time_.after(fault_time(), [this, &node] { crash(node); });
    if (chance(15)) time_.after(fault_time(), [this, &node] { freeze(node); });
    if (chance(20)) time_.after(fault_time(), [this, &node] { cut_cable(node); });
    if (chance(10)) time_.after(fault_time(), [this, &node] { leave(node); });
    // Something between the two resets the connection, and only the coordinator sees it.
    if (chance(15)) time_.after(fault_time(), [this, &node] { lose(node, time_.now()); });
  }

  // --- the network

  Time arrival(Node& node, Time& last) {
    const Time sent = std::max(time_.now(), node.cut_until);
    last = std::max(last, sent + random_ms(0, 5) + random_ms(0, static_cast<int>(node.slowness.count())));
    return last;
  }
  void deliver_to_coordinator(Node& node, const std::function<void()>& call) {
    time_.at(arrival(node, node.last_arrival), [this, &node, call] {
      if (node.cut_until > time_.now()) return deliver_to_coordinator(node, call);  // sent again
      call();
    });
  }
  void to_coordinator(Node& node, const std::function<void(Time)>& call) {
    if (!node.process_lives || node.ended) return;
    deliver_to_coordinator(node, [this, &node, call] {
      if (!node.connected) return;
      call(time_.now());
      perform_actions();
    });
  }
  void to_launcher(Node& node, const std::function<void()>& call) {
    time_.at(std::max(arrival(node, node.last_answer_arrival), node.frozen_until), [this, &node, call] {
      if (node.cut_until > time_.now() || node.frozen_until > time_.now()) return to_launcher(node, call);
      if (!node.process_lives || node.ended) return;
      if (node.joined && time_.now() >= node.lease) return lose_contact(node);
      call();
    });
  }

  // --- the launchers

  void connect(Node& node) {
    if (!node.process_lives) return;
    deliver_to_coordinator(node, [this, &node] {
      node.connected = true;
      node.last_heartbeat = time_.now();
      coordinator_->join(time_.now(), node.id, node.candidate);
      perform_actions();
    });
  }
  void joined(Node& node) {
    node.joined = true;
    node.lease = time_.now() + options_.heartbeat_timeout;
    heartbeat(node);
    watch_lease(node);
  }
  void heartbeat(Node& node) {
    if (!node.process_lives || node.ended) return;
    if (node.frozen_until > time_.now()) {
      time_.at(node.frozen_until, [this, &node] { heartbeat(node); });
      return;
    }
    const Time sent = time_.now();
    to_coordinator(node, [this, &node, sent](Time now) {
      node.last_heartbeat = now;
      to_launcher(node, [this, &node, sent] {
        node.lease = sent + options_.heartbeat_timeout;
        node.lease_is_agreed = true;
        watch_lease(node);
        for (const auto& call : std::exchange(node.held, {})) call();
      });
    });
    time_.after(options_.heartbeat_interval, [this, &node] { heartbeat(node); });
  }
  void watch_lease(Node& node) {
    time_.at(std::max(node.lease, node.frozen_until), [this, &node] {
      if (!node.process_lives || node.ended || time_.now() < node.lease) return;
      if (node.frozen_until > time_.now()) return watch_lease(node);
      lose_contact(node);
    });
  }
  void lose_contact(Node& node) {
    node.workers.reset();
    node.ended = true;
    close(node);
  }
  void close(Node& node) {
    deliver_to_coordinator(node, [this, &node] { lose(node, time_.now()); });
  }
  void told(Node& node, const std::function<void()>& call) {
    to_launcher(node, [&node, call] {
      if (node.lease_is_agreed) {
        call();
      } else {
        node.held.push_back(call);
      }
    });
  }

  void start(Node& node, const Start& order) {
    const Generation& map = *order.generation;
    EXPECT_FALSE(node.workers) << "a generation starts on " << node.id << " beside another one";
    // The map is the same for all, and this node is where the map says.
    const auto known = maps_.emplace(map.number, order.generation).first->second;
    EXPECT_EQ(known, order.generation);
    EXPECT_EQ(map.nodes[static_cast<size_t>(order.node_rank)].host, node.candidate.node.host);
    // No worker of another generation runs. A stopped launcher cannot kill its workers, so they
    // are not checked.
    for (const Node& other : nodes_) {
      if (!other.process_lives || other.frozen_until > time_.now() || !other.workers) continue;
      EXPECT_EQ(*other.workers, map.number) << "two generations run at once";
    }
    EXPECT_LE(map.restart_count, options_.max_restarts);
    node.workers = map.number;
    run_workers(node, map.number);
  }
  void run_workers(Node& node, int generation) {
    const milliseconds duration = random_ms(500, 15000);
    const int fate = pick(1, 100);
    time_.after(duration, [this, &node, generation, fate] { workers_end(node, generation, fate); });
  }
  void workers_end(Node& node, int generation, int fate) {
    if (!node.process_lives || node.ended || node.workers != generation) return;
    if (node.frozen_until > time_.now()) {
      time_.at(node.frozen_until, [=, this, &node] { workers_end(node, generation, fate); });
      return;
    }
    node.workers.reset();
    if (fate > 12) {
      ++successes_[generation];
      to_coordinator(
          node, [this, &node, generation](Time now) { coordinator_->succeeded(now, node.id, generation); });
      return;
    }
    JobFailure failure;
    failure.generation = generation;
    failure.time_us = time_.now().time_since_epoch().count() / 1000;
    failure.state.code = fate == 1 ? kExitPreempted : 1;
    to_coordinator(node,
                   [this, &node, failure](Time now) { coordinator_->worker_failed(now, node.id, failure); });
  }
  void stop(Node& node, int generation) {
    time_.after(random_ms(0, 500), [this, &node, generation] { stop_is_done(node, generation); });
  }
  void stop_is_done(Node& node, int generation) {
    if (!node.process_lives || node.ended) return;
    if (node.frozen_until > time_.now()) {
      time_.at(node.frozen_until, [this, &node, generation] { stop_is_done(node, generation); });
      return;
    }
    node.workers.reset();
    to_coordinator(node,
                   [this, &node, generation](Time now) { coordinator_->stopped(now, node.id, generation); });
  }

  // --- faults

  void crash(Node& node) {
    if (!node.process_lives) return;
    node.process_lives = false;
    node.workers.reset();  // the kernel kills them
    if (chance(50)) close(node);
  }
  void freeze(Node& node) { node.frozen_until = time_.now() + random_ms(200, 5000); }
  void cut_cable(Node& node) { node.cut_until = time_.now() + random_ms(200, 5000); }
  void leave(Node& node) {
    if (!node.joined || node.frozen_until > time_.now()) return;
    to_coordinator(node, [this, &node](Time now) { coordinator_->leave(now, node.id, SIGTERM); });
  }

  // --- the coordinator's server

  void lose(Node& node, Time when) {
    if (!node.connected) return;
    node.connected = false;
    const Time lease_end = node.last_heartbeat + options_.heartbeat_timeout + options_.lease_margin;
    coordinator_->lost(time_.now(), node.id, {"gone", when.time_since_epoch().count() / 1000, lease_end});
    perform_actions();
  }
  void look_around() {
    for (Node& node : nodes_) {
      if (node.connected && time_.now() - node.last_heartbeat > options_.heartbeat_timeout) {
        lose(node, node.last_heartbeat);
      }
    }
    time_.after(options_.heartbeat_interval / 5, [this] { look_around(); });
  }
  void perform_actions() {
    for (const Action& action : coordinator_->take_actions()) {
      std::visit([this](const auto& a) { perform(nodes_[a.to - 1], a); }, action);
    }
    if (const auto deadline = coordinator_->deadline()) {
      time_.at(*deadline, [this] {
        coordinator_->tick(time_.now(), /*time_us=*/0);
        perform_actions();
      });
    }
  }
  void expect_not_told(Node& node) { EXPECT_EQ(told_end_.count(node.id), 0u) << "something after the end"; }

  void perform(Node& node, const Refused&) {
    expect_not_told(node);
    told_end_.insert(node.id);
    node.connected = false;
    to_launcher(node, [&node] { node.ended = true; });
  }
  void perform(Node& node, const Joined&) {
    expect_not_told(node);
    to_launcher(node, [this, &node] { joined(node); });
  }
  void perform(Node& node, const ReserveStorePort& a) {
    expect_not_told(node);
    told(node, [this, &node, generation = a.generation] {
      to_coordinator(node, [this, &node, generation](Time now) {
        coordinator_->store_port(now, node.id, generation, 29500, "");
      });
    });
  }
  void perform(Node& node, const Start& a) {
    expect_not_told(node);
    if (a.generation->number != last_generation_) {
      EXPECT_EQ(a.generation->number, last_generation_ + 1);
      EXPECT_LE(a.generation->restart_count, last_restarts_ + 1);
      EXPECT_GE(a.generation->restart_count, last_restarts_);
      EXPECT_GE(static_cast<int>(a.generation->nodes.size()), options_.min_nodes);
      EXPECT_LE(static_cast<int>(a.generation->nodes.size()), options_.max_nodes);
      last_generation_ = a.generation->number;
      last_restarts_ = a.generation->restart_count;
    }
    told(node, [this, &node, a] { start(node, a); });
  }
  void perform(Node& node, const Note&) { expect_not_told(node); }
  void perform(const Node& node, const Stalled&) { ADD_FAILURE() << node.id << " reported no progress"; }
  void perform(Node& node, const Stop& a) {
    expect_not_told(node);
    told(node, [this, &node, a] { stop(node, a.generation); });
  }
  void perform(Node& node, const Finish& a) {
    expect_not_told(node);
    told_end_.insert(node.id);
    if (a.outcome.kind == JobOutcome::Kind::kSuccess && last_generation_ >= 0) {
      EXPECT_EQ(successes_[last_generation_], static_cast<int>(maps_[last_generation_]->nodes.size()));
    }
    to_launcher(node, [this, &node] {
      node.workers.reset();
      node.ended = true;
      close(node);
    });
  }

  std::mt19937_64 random_;
  const RendezvousOptions options_;
  VirtualTime time_;
  std::optional<Coordinator> coordinator_;
  std::vector<Node> nodes_;
  std::map<int, std::shared_ptr<const Generation>> maps_;
  std::map<int, int> successes_;
  std::set<MemberId> told_end_;
  int last_generation_ = -1, last_restarts_ = 0;
};

TEST(RendezvousScheduleTest, InvariantsHoldOverRandomSchedules) {
  int generations = 0;
  for (uint64_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed);
    simulation.run();
    generations += simulation.num_generations();
  }
  // The schedules have an effect.
  EXPECT_GT(generations, kSeeds);
}

}  // namespace
}  // namespace lockstep::launcher
