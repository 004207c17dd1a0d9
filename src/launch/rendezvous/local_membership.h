#pragma once

#include "base/event_loop.h"
#include "launch/membership.h"
#include "launch/rendezvous/coordinator.h"
#include "launch/rendezvous/listener_queue.h"

namespace lockstep::launcher {

// The place of one node that asks nobody else: the same rules, no sockets.
class LocalMembership : public Membership {
 public:
  // map: of the whole job; of its nodes this one decides for itself alone. Without a
  // master_port one is reserved for each generation. The listener outlives the membership
  // and may destroy it in finish(). Of the options only max_restarts counts.
  LocalMembership(base::EventLoop& loop, Generation map, const RendezvousOptions& options,
                  MembershipListener& listener);

  void worker_failed(const JobFailure& failure) override;
  void progress(int generation, const std::vector<RankView>& workers) override;
  void succeeded(int generation) override;
  void stopped(int generation) override;
  void stuck(int generation, const std::string& reason) override;
  void leave(int signal) override;

 private:
  void perform_actions();
  void reserve_port(int generation);
  // What the coordinator, who knows this node only, has decided: as part of the whole job.
  Generation placed(const Generation& own) const;
  JobOutcome placed(JobOutcome outcome) const;

  const Generation map_;
  MembershipListener& listener_;
  Coordinator coordinator_;
  ListenerQueue events_;
};

}  // namespace lockstep::launcher
