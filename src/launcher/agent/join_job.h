#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "base/event_loop.h"
#include "launcher/agent/keeper.h"
#include "launcher/agent/run_options.h"
#include "launcher/membership.h"

namespace lockstep::launcher {

// A membership on its own thread and event loop. The launcher's loop may block on file systems
// and programs; heartbeats and the keeper's lease continue here meanwhile. The lease means that
// this process runs and is in contact with the job: when the job has ended or contact is lost,
// the keeper kills the workers without waiting for the launcher's loop.
class MembershipThread final : public Membership, private MembershipListener {
 public:
  using Join =
      std::function<std::unique_ptr<Membership>(base::EventLoop& loop, MembershipListener& listener)>;

  // Calls `join` at once, on the caller's thread, and lets its exceptions through. The listener is
  // called from `loop`, except reserve_store_port(), which the membership's thread calls. Loop,
  // listener and keeper outlive this.
  MembershipThread(base::EventLoop& loop, MembershipListener& listener, Keeper& keeper, const Join& join);
  ~MembershipThread() override;

  void worker_failed(const JobFailure& failure) override;
  void progress(int generation, const std::vector<RankView>& workers) override;
  void succeeded(int generation) override;
  void stopped(int generation) override;
  void stuck(int generation, const std::string& reason) override;
  void leave(int signal) override;

 private:
  // Called by the membership, on its thread.
  void joined(std::chrono::milliseconds heartbeat_timeout) override;
  uint16_t reserve_store_port(int generation) override;
  void start(const Generation& generation) override;
  void stop(int generation, const std::string& reason) override;
  void note(const std::string& text) override;
  void stalled(int generation, const Stall& stall) override;
  void finish(const JobOutcome& outcome) override;

  void run();
  void keep_lease();
  // Makes a call to the membership from its loop.
  void call_membership(std::function<void(Membership&)> call);

  MembershipListener& listener_;
  ListenerQueue events_;  // on the launcher's loop
  Keeper& keeper_;

  base::EventLoop own_loop_;
  std::unique_ptr<Membership> membership_;
  std::chrono::milliseconds lease_{0};
  base::EventLoop::Timer lease_timer_;
  std::thread thread_;
};

// Joins this launcher to its job: alone, as the host of the coordinator, or as a member of another
// launcher's coordinator. With JoinOptions::Kind::kOpen and no given host, the launcher that has the
// endpoint's address and gets its port first hosts. ConfigError: this launcher must host and the port
// is in use; later failures are reported by the listener's finish(). With several nodes the membership
// is a MembershipThread, which renews the keeper's lease.
std::unique_ptr<Membership> join_job(base::EventLoop& loop, const RunOptions& options,
                                     MembershipListener& listener, Keeper& keeper);

}  // namespace lockstep::launcher
