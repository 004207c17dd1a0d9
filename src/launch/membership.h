#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launch/job.h"
#include "launch/stall.h"

namespace lockstep::launcher {

// What a membership asks of the launcher that joined. Called from the event loop,
// never from inside a call to the membership.
class MembershipListener {
 public:
  virtual ~MembershipListener() = default;

  // The job has taken this launcher. Whoever was not heard for heartbeat_timeout counts as lost.
  // Not called in a job of one node.
  virtual void joined(std::chrono::milliseconds /*heartbeat_timeout*/) {}
  // To the launcher of node 0, before each generation: a port on this machine that
  // nobody else gets while the generation runs. Throws ConfigError where there is none.
  virtual uint16_t reserve_store_port(int generation) = 0;
  // Start the workers of this generation. Comes only when nothing of the one before
  // runs any more, anywhere.
  virtual void start(const Generation& generation) = 0;
  // End this generation's workers (SIGTERM, grace, SIGKILL), then call stopped().
  virtual void stop(int generation, const std::string& reason) = 0;
  // What the person at this launcher wants to know: why it waits.
  virtual void note(const std::string& text) = 0;
  // No rank of the whole job has moved for the stall timeout while some wait.
  virtual void stalled(int generation, const Stall& stall) = 0;
  // The job is over, everywhere. Nothing comes after it. Workers still alive (the job
  // could not be reached any more) are killed at once.
  virtual void finish(const JobOutcome& outcome) = 0;
};

// One launcher's place in a job. Tells the coordinator what happens here, and the
// listener what the job decided. All calls return at once; one thread.
class Membership {
 public:
  virtual ~Membership() = default;

  // Workers of a generation that has ended are no news any more and are ignored, in
  // all of these.
  virtual void worker_failed(const JobFailure& failure) = 0;
  // What this node's workers are doing, in the order of their local ranks; every quarter
  // of the stall timeout, so that the job can tell who waits for whom. The ranks and
  // hosts in it need not be set.
  virtual void progress(int generation, const std::vector<RankView>& workers) = 0;
  // All workers of this node have ended with success.
  virtual void succeeded(int generation) = 0;
  // None of this generation's workers runs any more, after stop().
  virtual void stopped(int generation) = 0;
  // Workers of this generation have not ended though they were killed: the kernel does not let
  // go of them. This node counts as lost, for this reason.
  virtual void stuck(int generation, const std::string& reason) = 0;
  // This launcher was asked to end by a signal. Where the job can go on without this
  // node it does, and this launcher alone is finished; else the whole job ends.
  virtual void leave(int signal) = 0;
};

}  // namespace lockstep::launcher
