#include "launcher/rendezvous/join.h"

#include <lockstep/error.h>

#include <optional>
#include <utility>

#include "base/event_loop.h"
#include "base/job_token.h"
#include "base/network.h"
#include "launcher/membership.h"
#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/coordinator_server.h"
#include "launcher/rendezvous/remote_membership.h"

namespace lockstep::launcher {

namespace {

// --- one node without sockets ---

using Clock = base::EventLoop::Clock;

constexpr MemberId kSelf = 1;

RendezvousOptions for_one_node(RendezvousOptions options) {
  options.min_nodes = options.max_nodes = 1;
  return options;
}

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

// The place of one node with its own coordinator: the same rules, no sockets.
class LocalMembership : public Membership {
 public:
  // map: of the whole job; this node decides for itself alone. Without a master_port one is
  // reserved for each generation. The listener outlives the membership and may destroy it in
  // finish(). Of the options only max_restarts and the stall timeout have an effect.
  LocalMembership(base::EventLoop& loop, Generation map, const RendezvousOptions& options,
                  MembershipListener& listener)
      : map_(std::move(map)),
        listener_(listener),
        coordinator_(for_one_node(options), /*needs_host=*/true, Clock::now()),
        events_(loop) {
    NodeInfo node = map_.nodes.at(static_cast<size_t>(map_.node_rank));
    node.node_rank = 0;
    coordinator_.join(Clock::now(), kSelf, {std::move(node), "self", true});
    perform_actions();
  }

  void worker_failed(const JobFailure& failure) override {
    coordinator_.worker_failed(Clock::now(), kSelf, failure);
    perform_actions();
  }
  void progress(int generation, const std::vector<RankView>& workers) override {
    coordinator_.progress(Clock::now(), kSelf, generation, workers);
    perform_actions();
  }
  void succeeded(int generation) override {
    coordinator_.succeeded(Clock::now(), kSelf, generation);
    perform_actions();
  }
  void stopped(int generation) override {
    coordinator_.stopped(Clock::now(), kSelf, generation);
    perform_actions();
  }
  void stuck(int generation, const std::string& reason) override {
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    const int64_t time_us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    coordinator_.stuck(Clock::now(), kSelf, generation, {reason, time_us, Clock::now()});
    perform_actions();
  }
  void leave(int signal) override {
    coordinator_.leave(Clock::now(), kSelf, signal);
    perform_actions();
  }

 private:
  void perform_actions() {
    for (Action& action : coordinator_.take_actions()) {
      std::visit(
          Overloaded{
              [](const Refused&) {},
              [](const Joined&) {},
              [this](const ReserveStorePort& a) {
                events_.push([this, generation = a.generation] { reserve_store_port(generation); });
              },
              [this](const Start& a) {
                events_.push(
                    [this, generation = in_whole_job(*a.generation)] { listener_.start(generation); });
              },
              [this](const Stop& a) { events_.push([this, a] { listener_.stop(a.generation, a.reason); }); },
              [](const Note&) {},
              [this](const Stalled& a) {
                events_.push([this, a] { listener_.stalled(a.generation, *a.stall); });
              },
              [this](const Finish& a) {
                events_.push([this, outcome = in_whole_job(a.outcome)] { listener_.finish(outcome); });
              },
          },
          action);
    }
  }

  void reserve_store_port(int generation) {
    uint16_t port = map_.master_port;
    std::string error;
    try {
      if (port == 0) port = listener_.reserve_store_port(generation);
    } catch (const ConfigError& problem) {
      error = problem.what();
    }
    coordinator_.store_port(Clock::now(), kSelf, generation, port, error);
    perform_actions();
  }

  // The coordinator knows this node only: these put its decisions into the whole job.
  Generation in_whole_job(const Generation& own) const {
    Generation generation = map_;
    generation.number = own.number;
    generation.restart_count = own.restart_count;
    generation.master_port = own.master_port;
    generation.secret = own.secret;
    return generation;
  }
  JobOutcome in_whole_job(JobOutcome outcome) const {
    if (outcome.failure) outcome.failure->node_rank = map_.node_rank;
    return outcome;
  }

  const Generation map_;
  MembershipListener& listener_;
  Coordinator coordinator_;
  ListenerQueue events_;
};

// --- the launcher that hosts the coordinator ---

// Where this process reaches its own listener: a wildcard is not a destination.
std::string reach_self_at(const std::string& listen_address) {
  if (listen_address == "0.0.0.0") return "127.0.0.1";
  if (listen_address == "::") return "::1";
  return listen_address;
}

RendezvousOptions to_self(RendezvousOptions options, const std::string& listen_address, uint16_t port) {
  options.host = reach_self_at(listen_address);
  options.port = port;
  return options;
}

// The secret of a job without a given token, in key files that its launchers read. They exist as
// long as launchers may join.
class PublishedToken {
 public:
  explicit PublishedToken(const std::vector<std::string>& names) : text_(base::make_token()) {
    for (const std::string& name : names) {
      files_.emplace_back(name, base::Environment::of_process());
      files_.back().publish(text_);
    }
  }
  PublishedToken(PublishedToken&&) = default;
  ~PublishedToken() {
    for (const base::KeyFile& file : files_) file.remove();
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<base::KeyFile> files_;
};

// A member of the coordinator that it hosts.
class HostingMembership : public Membership {
 public:
  HostingMembership(base::EventLoop& loop, base::ListenSocket listener_socket, const NodeInfo& node,
                    const RendezvousOptions& options, const std::string& listen_address,
                    MembershipListener& listener, std::optional<PublishedToken> token)
      : token_(std::move(token)),
        server_(loop, std::move(listener_socket), options),
        member_(loop, node, to_self(options, listen_address, server_.port()), /*hosts_coordinator=*/true,
                listener) {}

  void worker_failed(const JobFailure& failure) override { member_.worker_failed(failure); }
  void progress(int generation, const std::vector<RankView>& workers) override {
    member_.progress(generation, workers);
  }
  void succeeded(int generation) override { member_.succeeded(generation); }
  void stopped(int generation) override { member_.stopped(generation); }
  void stuck(int generation, const std::string& reason) override { member_.stuck(generation, reason); }
  void leave(int signal) override { member_.leave(signal); }

 private:
  const std::optional<PublishedToken> token_;
  CoordinatorServer server_;
  RemoteMembership member_;
};

void check_options(const RendezvousOptions& options) {
  if (options.min_nodes < 1 || options.max_nodes < options.min_nodes || options.max_restarts < 0) {
    throw ConfigError("rendezvous", "a job needs 1 <= MIN <= MAX nodes and no negative number of restarts");
  }
}

}  // namespace

std::unique_ptr<Membership> join_alone(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                                       MembershipListener& listener) {
  node.node_rank = 0;
  if (node.address.empty()) node.address = "127.0.0.1";
  Generation map;
  map.master_addr = node.address;
  map.nodes = {std::move(node)};
  return join_known(loop, map, options, listener);
}

std::unique_ptr<Membership> join_known(base::EventLoop& loop, const Generation& map,
                                       const RendezvousOptions& options, MembershipListener& listener) {
  return std::make_unique<LocalMembership>(loop, map, options, listener);
}

std::unique_ptr<Membership> join_remote(base::EventLoop& loop, const NodeInfo& node,
                                        const RendezvousOptions& options, MembershipListener& listener) {
  return std::make_unique<RemoteMembership>(loop, node, options, /*hosts_coordinator=*/false, listener);
}

HostedJob host_job(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                   const std::string& listen_address, MembershipListener& listener) {
  check_options(options);
  base::ListenSocket socket = base::listen_on(listen_address, options.port);
  const uint16_t port = socket.port;
  if (node.address.empty()) node.address = options.host;
  // Only after the port is ours: another launcher of this machine may have it and have written
  // its own token.
  std::optional<PublishedToken> token;
  RendezvousOptions own = options;
  if (own.token.empty() && !own.key_names.empty()) own.token = token.emplace(own.key_names).text();
  return {std::make_unique<HostingMembership>(loop, std::move(socket), node, own, listen_address, listener,
                                              std::move(token)),
          port};
}

}  // namespace lockstep::launcher
