#pragma once

#include "base/event_loop.h"
#include "launch/membership.h"
#include "launch/rendezvous/coordinator.h"
#include "launch/rendezvous/listener_queue.h"

namespace lockstep::launcher {

// The place in a job of one node: the same rules, no sockets.
class LocalMembership : public Membership {
 public:
  // The listener outlives the membership and may destroy it in finish(). Of the
  // options only max_restarts counts.
  LocalMembership(base::EventLoop& loop, NodeInfo node, const RendezvousOptions& options,
                  MembershipListener& listener);

  void worker_failed(const JobFailure& failure) override;
  void progress(int generation, const std::vector<RankView>& workers) override;
  void succeeded(int generation) override;
  void stopped(int generation) override;
  void leave(int signal) override;

 private:
  void perform_actions();
  void reserve_port(int generation);

  MembershipListener& listener_;
  Coordinator coordinator_;
  ListenerQueue events_;
};

}  // namespace lockstep::launcher
