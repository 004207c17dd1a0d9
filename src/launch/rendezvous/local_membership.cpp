#include "launch/rendezvous/local_membership.h"

#include <lockstep/error.h>

#include <utility>

namespace lockstep::launcher {
namespace {

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

}  // namespace

LocalMembership::LocalMembership(base::EventLoop& loop, Generation map, const RendezvousOptions& options,
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

void LocalMembership::perform_actions() {
  for (Action& action : coordinator_.take_actions()) {
    std::visit(
        Overloaded{
            [](const Refuse&) {},
            [](const Admit&) {},
            [this](const ReserveStorePort& a) {
              events_.push([this, generation = a.generation] { reserve_port(generation); });
            },
            [this](const Start& a) {
              events_.push([this, generation = placed(*a.generation)] { listener_.start(generation); });
            },
            [this](const Stop& a) { events_.push([this, a] { listener_.stop(a.generation, a.reason); }); },
            [](const Tell&) {},
            [this](const TellStall& a) {
              events_.push([this, a] { listener_.stalled(a.generation, *a.stall); });
            },
            [this](const Finish& a) {
              events_.push([this, outcome = placed(a.outcome)] { listener_.finish(outcome); });
            },
        },
        action);
  }
}

Generation LocalMembership::placed(const Generation& own) const {
  Generation generation = map_;
  generation.number = own.number;
  generation.restart_count = own.restart_count;
  generation.master_port = own.master_port;
  generation.secret = own.secret;
  return generation;
}

JobOutcome LocalMembership::placed(JobOutcome outcome) const {
  if (outcome.failure) outcome.failure->node_rank = map_.node_rank;
  return outcome;
}

void LocalMembership::reserve_port(int generation) {
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

void LocalMembership::worker_failed(const JobFailure& failure) {
  coordinator_.worker_failed(Clock::now(), kSelf, failure);
  perform_actions();
}

void LocalMembership::progress(int generation, const std::vector<RankView>& workers) {
  coordinator_.progress(Clock::now(), kSelf, generation, workers);
  perform_actions();
}

void LocalMembership::succeeded(int generation) {
  coordinator_.succeeded(Clock::now(), kSelf, generation);
  perform_actions();
}

void LocalMembership::stopped(int generation) {
  coordinator_.stopped(Clock::now(), kSelf, generation);
  perform_actions();
}

void LocalMembership::stuck(int generation, const std::string& reason) {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  const int64_t time_us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  coordinator_.stuck(Clock::now(), kSelf, generation, {reason, time_us, Clock::now()});
  perform_actions();
}

void LocalMembership::leave(int signal) {
  coordinator_.leave(Clock::now(), kSelf, signal);
  perform_actions();
}

}  // namespace lockstep::launcher
