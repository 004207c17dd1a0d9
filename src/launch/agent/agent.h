#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/event_loop.h"
#include "launch/agent/console.h"
#include "launch/agent/keeper.h"
#include "launch/agent/log_folder.h"
#include "launch/agent/run_options.h"
#include "launch/agent/stack_dump.h"
#include "launch/agent/store_port.h"
#include "launch/agent/worker_group.h"
#include "launch/membership.h"
#include "launch/signal_queue.h"

namespace lockstep::launcher {

// This node's part of a job: does what the job decides (MembershipListener), tells it
// what happens here, and turns signals to the launcher into what they mean.
class Agent final : public MembershipListener {
 public:
  Agent(base::EventLoop& loop, const RunOptions& options, Keeper& keeper, Consoles consoles);
  ~Agent() override;

  // Before the loop runs. The membership outlives the agent's use of it.
  void join(Membership& membership) { membership_ = &membership; }
  // How the job ended; set when the loop stops.
  const std::optional<JobOutcome>& outcome() const { return outcome_; }
  // Whether every worker of this node ended with the status of a wrong use.
  bool all_refused() const { return all_refused_; }
  // Where the log files are that stay, or "".
  std::string kept_logs() const;

  // The one member that other threads may call, before start().
  uint16_t reserve_store_port(int generation) override;
  void start(const Generation& generation) override;
  void stop(int generation, const std::string& reason) override;
  void note(const std::string& text) override;
  void stalled(int generation, const Stall& stall) override;
  void finish(const JobOutcome& outcome) override;

 private:
  void on_worker_exit(int local_rank);
  void tell_failure(int local_rank);
  // A worker has ended because another one failed: whose end may be seen a moment later.
  void await_cause(int local_rank);
  JobFailure explain_failure(int local_rank) const;
  bool every_worker_refused() const;
  void on_signals();
  void on_stop_signal(int signal);
  void tell_progress();
  void show_status();
  // This signal now, SIGKILL when the grace is over.
  void end_workers(int signal);
  // SIGKILL, to all or to one. Who has not ended kill_timeout later makes this node a lost one.
  void kill_workers();
  void kill_worker(int local_rank);
  void expect_end();
  void give_up();
  void say(const std::string& line);
  void say_threads(int ranks);

  base::EventLoop& loop_;
  const RunOptions& options_;
  Keeper& keeper_;
  Consoles consoles_;
  SignalQueue signals_;
  LogFolder logs_;
  rlimit open_files_{};  // before anything raises it
  Membership* membership_ = nullptr;
  std::mutex store_port_mutex_;
  std::optional<StorePort> store_port_;
  std::unique_ptr<WorkerGroup> workers_;
  bool stopping_ = false;  // stop() was asked for, stopped() not yet said
  bool ending_ = false;    // the workers were told to end
  bool failure_told_ = false;
  bool killed_ = false;         // at least one of the workers was sent SIGKILL
  std::optional<int> suspect_;  // failed by another's failure, as it says; not told yet
  int stop_signal_ = 0;
  std::string unsaid_reason_;          // why the last generation stopped, where nobody was told
  base::EventLoop::Timer kill_timer_;  // of the workers' end: SIGTERM, then SIGKILL
  base::EventLoop::Timer cause_timer_;
  base::EventLoop::Timer progress_timer_;
  base::EventLoop::Timer stuck_timer_;
  base::EventLoop::Timer status_timer_;
  const base::EventLoop::Clock::time_point began_ = base::EventLoop::Clock::now();
  std::vector<std::unique_ptr<StackDump>> stacks_;
  std::optional<JobOutcome> outcome_;
  bool all_refused_ = false;
};

}  // namespace lockstep::launcher
