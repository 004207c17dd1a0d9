#include "launch/rendezvous/local_membership.h"

#include <lockstep/error.h>

namespace lockstep::launcher {
namespace {

constexpr MemberId kSelf = 1;

}  // namespace

LocalMembership::LocalMembership(base::EventLoop& loop, const RendezvousOptions& options,
                                 const NodeInfo& node, MembershipListener& listener)
    : loop_(loop), listener_(listener), coordinator_(options, /*needs_host=*/true, now()) {
  coordinator_.join(now(), kSelf, {.node = node, .instance = "self", .hosts_coordinator = true});
  schedule();
}

LocalMembership::~LocalMembership() { loop_.cancel(timer_); }

void LocalMembership::worker_failed(const JobFailure& failure) {
  coordinator_.worker_failed(now(), kSelf, failure);
  schedule();
}

void LocalMembership::succeeded(int generation) {
  coordinator_.succeeded(now(), kSelf, generation);
  schedule();
}

void LocalMembership::stopped(int generation) {
  coordinator_.stopped(now(), kSelf, generation);
  schedule();
}

void LocalMembership::leave(int signal) {
  coordinator_.leave(now(), kSelf, signal);
  schedule();
}

// From the loop, as the listener was promised.
void LocalMembership::schedule() {
  loop_.cancel(timer_);
  timer_ = loop_.at(now(), [this] { act(); });
}

void LocalMembership::act() {
  coordinator_.tick(now());
  for (const Action& action : coordinator_.take_actions()) {
    if (const auto* reserve_port = std::get_if<ReserveStorePort>(&action)) reserve(reserve_port->generation);
    if (const auto* start = std::get_if<Start>(&action)) listener_.start(*start->generation);
    if (const auto* stop = std::get_if<Stop>(&action)) listener_.stop(stop->generation, stop->reason);
    if (const auto* finish = std::get_if<Finish>(&action)) listener_.finish(finish->outcome);
    if (const auto* refuse = std::get_if<Refuse>(&action)) {
      listener_.finish({.kind = JobOutcome::Kind::kRendezvousFailed, .reason = refuse->reason});
    }
  }
  if (const auto deadline = coordinator_.deadline()) {
    loop_.cancel(timer_);
    timer_ = loop_.at(*deadline, [this] { act(); });
  }
}

void LocalMembership::reserve(int generation) {
  try {
    coordinator_.store_port(now(), kSelf, generation, listener_.reserve_store_port(generation), "");
  } catch (const Error& error) {
    coordinator_.store_port(now(), kSelf, generation, 0, error.what());
  }
  schedule();
}

}  // namespace lockstep::launcher
