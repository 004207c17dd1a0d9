#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/mutex.h"
#include "launcher/job.h"
#include "launcher/stall.h"

namespace lockstep::launcher {

// Receives what the job decides for the launcher that joined. Called from the event loop,
// never from inside a call to the membership.
class MembershipListener {
 public:
  virtual ~MembershipListener() = default;

  // The job has accepted this launcher. A launcher without a heartbeat for heartbeat_timeout
  // counts as lost. Not called in a job of one node.
  virtual void joined(std::chrono::milliseconds /*heartbeat_timeout*/) {}
  // For the launcher of node 0, before each generation: returns a port on this machine that no
  // other process gets while the generation runs. Throws ConfigError if there is none.
  virtual uint16_t reserve_store_port(int generation) = 0;
  // Start the workers of this generation. Called only when no worker of the previous
  // generation runs any more on any node.
  virtual void start(const Generation& generation) = 0;
  // End this generation's workers (SIGTERM, grace, SIGKILL), then call stopped().
  virtual void stop(int generation, const std::string& reason) = 0;
  // A sentence for the user of this launcher, such as why it waits.
  virtual void note(const std::string& text) = 0;
  // No rank of the whole job has progressed for the stall timeout while some wait.
  virtual void stalled(int generation, const Stall& stall) = 0;
  // The job has ended, for this launcher or on all nodes; the last call. Workers that still
  // run (contact with the job was lost) must be killed at once.
  virtual void finish(const JobOutcome& outcome) = 0;
};

// One launcher's place in a job. Reports to the coordinator what happens on this node, and
// to the listener what the job decided. Calls do not block; all from one thread.
class Membership {
 public:
  virtual ~Membership() = default;

  // All of these ignore workers of a generation that has ended.
  virtual void worker_failed(const JobFailure& failure) = 0;
  // The state of this node's workers, in the order of their local ranks; called every quarter of the
  // stall timeout, so that the job can find which ranks wait for which. The ranks and hosts in it need
  // not be set.
  virtual void progress(int generation, const std::vector<RankView>& workers) = 0;
  // All workers of this node have ended with success.
  virtual void succeeded(int generation) = 0;
  // None of this generation's workers runs any more, after stop().
  virtual void stopped(int generation) = 0;
  // Workers of this generation were killed but did not end: they hang in the kernel. This
  // node counts as lost, for this reason.
  virtual void stuck(int generation, const std::string& reason) = 0;
  // This launcher got a signal to end. If the job can continue without this node, only this
  // launcher gets finish(); otherwise the whole job ends.
  virtual void leave(int signal) = 0;
};

// Queues calls to a listener: each runs from the event loop, in order, and never from inside
// the call that caused it. push() and clear() are thread-safe; the queue is destroyed on the
// loop's thread.
class ListenerQueue {
 public:
  explicit ListenerQueue(base::EventLoop& loop) : loop_(loop) {}
  ListenerQueue(const ListenerQueue&) = delete;
  ListenerQueue& operator=(const ListenerQueue&) = delete;

  void push(std::function<void()> call) {
    const base::MutexLock lock(mutex_);
    calls_.push_back(std::move(call));
    loop_.post([this, alive = std::weak_ptr<const bool>(alive_)] {
      if (alive.lock()) make_next();
    });
  }

  // Drops the calls that have not been made.
  void clear() {
    const base::MutexLock lock(mutex_);
    calls_.clear();
  }

 private:
  void make_next() {
    std::function<void()> call;
    {
      const base::MutexLock lock(mutex_);
      if (calls_.empty()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    call();  // the last one may destroy this queue
  }

  base::EventLoop& loop_;
  base::Mutex mutex_;
  std::deque<std::function<void()>> calls_ LOCKSTEP_GUARDED_BY(mutex_);
  // Calls that are still posted to the loop when this is destroyed do nothing.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::launcher
