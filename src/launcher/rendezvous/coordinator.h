#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/job.h"
#include "launcher/rendezvous/options.h"
#include "launcher/rendezvous/roster.h"
#include "launcher/stall.h"

namespace lockstep::launcher {

// What the coordinator sends to a member. Over TCP each becomes the message of the same
// name (message.h); the launcher gets it as the MembershipListener's call of that name.
struct Refused {
  MemberId to = 0;
  std::string reason;
};
struct Joined {
  MemberId to = 0;
};
struct ReserveStorePort {
  MemberId to = 0;
  int generation = 0;
};
struct Start {
  MemberId to = 0;
  int node_rank = 0;
  std::shared_ptr<const Generation> generation;  // one for all; its node_rank is 0
};
struct Stop {
  MemberId to = 0;
  int generation = 0;
  std::string reason;
};
struct Note {
  MemberId to = 0;
  std::string text;  // a sentence
};
struct Stalled {
  MemberId to = 0;
  int generation = 0;
  std::shared_ptr<const Stall> stall;  // one for all
};
struct Finish {
  MemberId to = 0;
  JobOutcome outcome;
};
using Action = std::variant<Refused, Joined, ReserveStorePort, Start, Stop, Note, Stalled, Finish>;

// Runs a job: who takes part, when workers start and stop, how it ends. A state machine
// without sockets and without a clock: its functions get each event together with the time,
// and take_actions() returns what follows from it.
//
// Rules:
// - Generation 0 starts when max_nodes have joined, or when min_nodes have joined and the
//   last call or the join timeout is over. With fewer at the join timeout the job fails.
// - Every generation that does not end the job ends by Stop to all its members, and the next
//   one starts when each of them has reported stopped or is lost and its lease has ended. So
//   no two generations run at once. A member whose killed workers do not end, or that does
//   not answer within its stop_timeout, is lost and gets a Finish; if it hosts the
//   coordinator, the job ends when the others have stopped.
// - A failed worker or a lost node is one failure; several in one generation count once.
//   Each restart after a failure is taken from max_restarts of the whole job.
// - A launcher that joins late takes part from the next generation on. If there is room, the
//   job restarts for it after the last call, which does not count as a restart; unless some
//   node has succeeded already. Beyond max_nodes it waits as a spare.
// - A launcher that leaves by a signal is dismissed if min_nodes remain without it; that
//   restart does not count either. Otherwise, and always for the launcher that hosts the
//   coordinator, the whole job ends.
// - A worker that exits with kExitPreempted as the first of its generation ends the job, and
//   so does one that exits with it while a signal stops the job.
// - If no worker of any member has progressed for stall_timeout and some wait, all members
//   get one Stalled; the reaction is up to them.
// - Every member gets one Finish or one Refused, and nothing after it.
class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // needs_host: nothing starts before the launcher that hosts the coordinator has joined.
  Coordinator(const RendezvousOptions& options, bool needs_host, Time now);

  void join(Time now, MemberId id, const Candidate& candidate);
  // The answer to ReserveStorePort: a port, or 0 and the reason why there is none.
  void store_port(Time now, MemberId id, int generation, uint16_t port, const std::string& error);
  void worker_failed(Time now, MemberId id, JobFailure failure);
  void progress(Time now, MemberId id, int generation, std::vector<RankView> workers);
  void succeeded(Time now, MemberId id, int generation);
  void stopped(Time now, MemberId id, int generation);
  void leave(Time now, MemberId id, int signal);

  struct Loss {
    std::string message;  // "no sign of life for 1.5 s"
    int64_t time_us = 0;  // since the epoch: when it happened, as far as is known
    Time lease_end;       // from then on no worker of this member runs
  };
  // Workers of this member were killed and do not end.
  void stuck(Time now, MemberId id, int generation, const Loss& loss);
  // Contact is lost. There are no more actions for this member.
  void lost(Time now, MemberId id, const Loss& loss);

  // The caller calls it at deadline(); earlier or later is allowed. Nothing else depends on time.
  // time_us: now, since the epoch.
  void tick(Time now, int64_t time_us);
  std::optional<Time> deadline() const;

  // In the order in which they must be performed. Empties the list.
  std::vector<Action> take_actions();
  bool finished() const { return phase_ == Phase::kFinished; }

 private:
  enum class Phase { kGathering, kReserving, kRunning, kStopping, kFinished };

  enum class Cause { kFailure, kScaleUp, kLeave };

  // Gathering.
  void consider_first_start(Time now);
  bool enough() const { return roster_.num_available() >= options_.min_nodes; }
  bool is_fixed_size() const { return options_.min_nodes == options_.max_nodes; }
  std::string too_few_came() const;

  // Generations.
  void ask_for_store_port(MemberId id);
  void start_generation(uint16_t store_port);
  // A member joined or left before the generation in preparation has started.
  void reconsider_selection(Time now);
  void consider_scale_up(Time now);
  // Sends a note why a member that has joined does not take part in the running generation.
  void explain_waiting(MemberId id);
  bool all_succeeded() const;
  void consider_stall(Time now);
  // The member, if it takes part in the running generation and that is this one; else nullptr.
  Member* participant(MemberId id, int generation);

  // Stopping.
  void begin_stop(Time now, Cause cause, const std::string& reason);
  void add_failure(Time now, const JobFailure& failure);
  void consider_stopped(Time now);
  // How the job ends when this generation has stopped; nullopt: it continues.
  std::optional<JobOutcome> verdict() const;
  const JobFailure* root_cause() const;
  void lose_participant(Time now, Member& member, const Loss& loss);
  // Loses a participant that is still in contact.
  void give_up(Time now, MemberId id, const Loss& loss);
  void give_up_on_late(Time now, int64_t time_us);
  // Sends a Finish to a member that leaves and that the job does not need.
  void dismiss(MemberId id);

  // The end.
  void finish(const JobOutcome& outcome);
  JobOutcome failed(const JobFailure& root) const;
  JobOutcome stopped_by_signal() const;

  const RendezvousOptions options_;
  const bool needs_host_;
  const Time join_deadline_;
  Phase phase_ = Phase::kGathering;
  Roster roster_;
  std::vector<Action> actions_;

  std::optional<Time> last_call_;  // when it is over
  std::optional<Time> scale_up_;   // when the job restarts for late launchers
  MemberId reserver_ = 0;
  int generation_ = -1;                    // the one that runs or ran last
  std::shared_ptr<const Generation> map_;  // of that one
  bool stall_reported_ = false;
  int restarts_ = 0;

  // Of the generation that is being stopped.
  Cause cause_ = Cause::kFailure;
  std::vector<JobFailure> failures_;
  std::optional<Time> first_failure_;
  std::optional<JobFailure> saved_after_signal_;  // a worker that exited with kExitPreempted
  std::string end_;                               // how the job ended, for launchers that join later
};

}  // namespace lockstep::launcher
