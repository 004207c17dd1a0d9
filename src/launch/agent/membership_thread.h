#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/event_loop.h"
#include "launch/agent/keeper.h"
#include "launch/membership.h"

namespace lockstep::launcher {

// A membership on a thread and an event loop of its own. The launcher's loop waits for file
// systems and programs for as long as these take; heartbeats and the keeper's lease go on here.
// The lease says that this process runs and is in contact with the job: when the job is over or
// out of reach, the keeper kills the workers without waiting for the launcher's loop.
class MembershipThread final : public Membership, private MembershipListener {
 public:
  using Join =
      std::function<std::unique_ptr<Membership>(base::EventLoop& loop, MembershipListener& listener)>;

  // Calls join at once, on this thread: what it throws is thrown here. The listener is called
  // from `loop`, but reserve_store_port() from the membership's thread. All three outlive this.
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
  // A call of the listener, from its loop.
  void pass_on(std::function<void()> call);
  void make_next_call();
  // A call of the membership, from its loop.
  void ask(std::function<void(Membership&)> call);

  base::EventLoop& loop_;
  MembershipListener& listener_;
  Keeper& keeper_;

  base::EventLoop own_loop_;
  std::unique_ptr<Membership> membership_;
  std::chrono::milliseconds lease_{0};
  base::EventLoop::Timer lease_timer_;

  std::mutex mutex_;
  std::deque<std::function<void()>> calls_;  // guarded by mutex_
  // What is still posted to the listener's loop when this is destroyed does nothing.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  std::thread thread_;
};

}  // namespace lockstep::launcher
