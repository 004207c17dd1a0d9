#pragma once

#include <deque>

#include "base/event_loop.h"
#include "launch/membership.h"
#include "launch/rendezvous/coordinator.h"

namespace lockstep::launcher {

// A job of one node: the coordinator is asked directly, without a socket.
class LocalMembership final : public Membership {
 public:
  // The listener is called from the loop, first to reserve a port.
  LocalMembership(base::EventLoop& loop, const RendezvousOptions& options, const NodeInfo& node,
                  MembershipListener& listener);
  LocalMembership(const LocalMembership&) = delete;
  LocalMembership& operator=(const LocalMembership&) = delete;
  ~LocalMembership() override;

  void worker_failed(const JobFailure& failure) override;
  void succeeded(int generation) override;
  void stopped(int generation) override;
  void leave(int signal) override;

 private:
  void schedule();
  void act();
  void reserve(int generation);
  base::EventLoop::Clock::time_point now() const { return base::EventLoop::Clock::now(); }

  base::EventLoop& loop_;
  MembershipListener& listener_;
  Coordinator coordinator_;
  base::EventLoop::Timer timer_;
};

}  // namespace lockstep::launcher
