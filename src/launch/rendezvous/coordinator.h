#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launch/job.h"
#include "launch/rendezvous/options.h"
#include "launch/rendezvous/roster.h"
#include "launch/stall.h"

namespace lockstep::launcher {

// What the coordinator wants to be said to a member.
struct Refuse {
  MemberId to = 0;
  std::string reason;
};
struct Admit {
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
struct Tell {
  MemberId to = 0;
  std::string text;  // a sentence
};
struct TellStall {
  MemberId to = 0;
  int generation = 0;
  std::shared_ptr<const Stall> stall;  // one for all
};
struct Finish {
  MemberId to = 0;
  JobOutcome outcome;
};
using Action = std::variant<Refuse, Admit, ReserveStorePort, Start, Stop, Tell, TellStall, Finish>;

// Runs a job: who takes part, when workers start and stop, how it ends. A state
// machine without sockets and without a clock: what happens is told to it together
// with the time, and take_actions() is what follows from it.
//
// Rules:
// - Generation 0 starts when max_nodes are there, or min_nodes and the last call is
//   over, or min_nodes and the join timeout is. With too few by then the job fails.
// - Every generation that does not end the job ends by Stop to all its members, and
//   the next one starts when each of them has said stopped or is lost and its lease
//   has run out. So no two generations run at once. A member whose killed workers do not
//   end, or that does not answer within its stop_timeout, is lost and gets a Finish; where
//   it hosts the coordinator the job ends when the others have stopped.
// - A failed worker or a lost node is one failure; several in one generation count
//   once. Each restart after a failure is taken from max_restarts of the whole job.
// - A launcher that comes late takes part from the next generation on. Where there is
//   room the job restarts for it after the last call, which costs no restart; unless
//   some node has succeeded already. Beyond max_nodes it waits as a spare.
// - A launcher that leaves by a signal is let go where min_nodes remain without it;
//   that restart costs nothing either. Else, and always for the launcher that hosts
//   the coordinator, the whole job ends.
// - A worker that left with kExitPreempted as the first of its generation ends the job,
//   and so does one that leaves with it while the job is stopped by a signal.
// - Where no worker of any member has moved for stall_timeout and some wait, all are
//   told once; what follows is theirs to decide.
// - Every member gets one Finish or one Refuse, and nothing after it.
class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // needs_host: nothing starts before the launcher that hosts the coordinator is there.
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
    Time lease_end;       // from when on nothing of this member runs any more
  };
  // Workers of this member were killed and do not end.
  void stuck(Time now, MemberId id, int generation, const Loss& loss);
  // Contact is lost. Nothing is said to this member any more.
  void lost(Time now, MemberId id, const Loss& loss);

  // To be called at deadline(), or earlier or later: nothing else happens by itself.
  // time_us: now, since the epoch.
  void tick(Time now, int64_t time_us);
  std::optional<Time> deadline() const;

  // In the order in which they are to be done. Empties the list.
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
  // A member came or went before the generation that is being prepared has started.
  void reconsider_selection(Time now);
  void consider_scale_up(Time now);
  // Why a member that has joined does not take part in what runs.
  void explain_waiting(MemberId id);
  bool all_succeeded() const;
  void consider_stall(Time now);
  // The member, if it takes part in the generation that runs, which is this one.
  Member* participant(MemberId id, int generation);

  // Stopping.
  void begin_stop(Time now, Cause cause, const std::string& reason);
  void add_failure(Time now, const JobFailure& failure);
  void consider_stopped(Time now);
  // How the job ends when this generation has stopped; nullopt: it goes on.
  std::optional<JobOutcome> verdict() const;
  const JobFailure* root_cause() const;
  void lose_participant(Time now, Member& member, const Loss& loss);
  // Loses a participant that is still in contact.
  void give_up(Time now, MemberId id, const Loss& loss);
  void give_up_on_late(Time now, int64_t time_us);
  // Lets a member go that the job does not need.
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
  std::optional<Time> scale_up_;   // when the job restarts for those who came late
  MemberId reserver_ = 0;
  int generation_ = -1;                    // the one that runs or ran last
  std::shared_ptr<const Generation> map_;  // of that one
  bool stall_told_ = false;
  int restarts_ = 0;

  // Of the generation that is being stopped.
  Cause cause_ = Cause::kFailure;
  std::vector<JobFailure> failures_;
  std::optional<Time> first_failure_;
  std::optional<JobFailure> saved_after_signal_;  // a worker that left with kExitPreempted
  std::string end_;                               // why nobody can join any more
};

}  // namespace lockstep::launcher
