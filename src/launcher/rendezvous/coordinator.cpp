
#include "launcher/rendezvous/coordinator.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/job_token.h"
#include "launcher/job.h"

namespace lockstep::launcher {

Coordinator::Coordinator(const RendezvousOptions& options, bool needs_host, Time now)
    : options_(options), needs_host_(needs_host), join_deadline_(now + options.join_timeout) {}

std::vector<Action> Coordinator::take_actions() { return std::exchange(actions_, {}); }

// --- joining ---

void Coordinator::join(Time now, MemberId id, const Candidate& candidate) {
  if (phase_ == Phase::kFinished) {
    actions_.emplace_back(Refused{id, "the job has ended: " + end_});
    return;
  }
  if (const auto objection = roster_.reason_to_refuse(candidate, options_.max_nodes)) {
    actions_.emplace_back(Refused{id, *objection});
    return;
  }
  roster_.add(id, candidate);
  actions_.emplace_back(Joined{id});
  if (phase_ == Phase::kGathering) consider_first_start(now);
  if (phase_ == Phase::kRunning) consider_scale_up(now);
  if (phase_ == Phase::kRunning && !roster_.find(id)->takes_part) explain_waiting(id);
}

void Coordinator::explain_waiting(MemberId id) {
  const bool full = static_cast<int>(map_->nodes.size()) >= options_.max_nodes;
  actions_.emplace_back(
      Note{id, full ? fmt::format("the job runs on all of its {}: this launcher is a spare, and waits until "
                                  "one of them is lost or the job ends",
                                  count_of(options_.max_nodes, "node"))
                    : "the job runs already: this launcher waits to take part when its ranks start again"});
}

void Coordinator::consider_first_start(Time now) {
  const bool ready = enough() && (!needs_host_ || roster_.has_host());
  if (!ready) {
    last_call_.reset();
    if (now >= join_deadline_) {
      finish(outcome_of(JobOutcome::Kind::kRendezvousFailed, too_few_came()));
    }
    return;
  }
  if (!last_call_) last_call_ = std::min(now + options_.last_call_timeout, join_deadline_);
  if (roster_.num_available() < options_.max_nodes && now < *last_call_) return;
  last_call_.reset();
  phase_ = Phase::kReserving;
  ask_for_store_port(roster_.select(options_.max_nodes).front());
}

std::string Coordinator::too_few_came() const {
  const auto seconds = std::chrono::duration<double>(options_.join_timeout).count();
  if (enough())
    return fmt::format("the launcher that hosts the rendezvous did not join within {} s", seconds);
  return fmt::format("{} of at least {} came within {} s: {}", roster_.num_available(),
                     count_of(options_.min_nodes, "node"), seconds, roster_.describe());
}

// --- generations ---

void Coordinator::ask_for_store_port(MemberId id) {
  reserver_ = id;
  ++roster_.find(id)->port_requests;
  actions_.emplace_back(ReserveStorePort{id, generation_ + 1});
}

void Coordinator::store_port(Time now, MemberId id, int generation, uint16_t port, const std::string& error) {
  Member* member = roster_.find(id);
  if (member == nullptr || member->port_requests == 0) return;
  // Only the answer to the last request counts: the launcher may have released the port of an
  // earlier one.
  if (--member->port_requests > 0) return;
  if (phase_ != Phase::kReserving || id != reserver_ || generation != generation_ + 1) return;
  if (port == 0) {
    finish(outcome_of(JobOutcome::Kind::kRendezvousFailed,
                      fmt::format("{} has no port for the store: {}", member->candidate.node.host, error),
                      restarts_));
    return;
  }
  const MemberId first = roster_.select(options_.max_nodes).front();
  if (first != reserver_) {
    ask_for_store_port(first);
    return;
  }
  start_generation(port);
  consider_scale_up(now);
}

void Coordinator::start_generation(uint16_t store_port) {
  const std::vector<MemberId> selected = roster_.select(options_.max_nodes);
  for (auto& [id, member] : roster_.members()) member.takes_part = false;
  const auto generation = std::make_shared<Generation>();
  generation->number = ++generation_;
  generation->restart_count = restarts_;
  generation->master_port = store_port;
  generation->secret = base::make_token();
  for (const MemberId id : selected) {
    Member& member = *roster_.find(id);
    member.takes_part = true;
    member.succeeded = member.stopped = false;
    member.stop_by.reset();
    member.workers.clear();
    member.node_rank = static_cast<int>(generation->nodes.size());
    generation->nodes.push_back(member.candidate.node);
    generation->nodes.back().node_rank = member.node_rank;
    actions_.emplace_back(Start{id, member.node_rank, generation});
  }
  generation->master_addr = generation->nodes.front().address;
  phase_ = Phase::kRunning;
  map_ = generation;
  for (const auto& [id, member] : roster_.members()) {
    if (!member.takes_part && member.available()) explain_waiting(id);
  }
  stall_reported_ = false;
  scale_up_.reset();
  failures_.clear();
  first_failure_.reset();
  saved_after_signal_.reset();
}

void Coordinator::reconsider_selection(Time now) {
  if (enough()) {
    const MemberId first = roster_.select(options_.max_nodes).front();
    if (first != reserver_) ask_for_store_port(first);
  } else if (generation_ < 0) {
    phase_ = Phase::kGathering;
    consider_first_start(now);
  } else {
    finish(outcome_of(
        JobOutcome::Kind::kNodeLost,
        fmt::format("{} left of at least {} before generation {} could start",
                    count_of(roster_.num_available(), "node"), options_.min_nodes, generation_ + 1),
        restarts_));
  }
}

void Coordinator::consider_scale_up(Time now) {
  int present = 0;
  bool near_the_end = false;
  for (const auto& [id, member] : roster_.members()) {
    if (!member.takes_part) continue;
    ++present;
    near_the_end |= member.succeeded;
  }
  const int room = options_.max_nodes - present;
  const auto waiting = std::count_if(roster_.members().begin(), roster_.members().end(), [](const auto& m) {
    return m.second.available() && !m.second.takes_part;
  });
  if (waiting == 0 || room <= 0 || near_the_end) {
    scale_up_.reset();
    return;
  }
  if (!scale_up_) scale_up_ = now + options_.last_call_timeout;
  if (waiting < room && now < *scale_up_) return;
  scale_up_.reset();
  const int64_t more = std::min<int64_t>(waiting, room);
  begin_stop(now, Cause::kScaleUp, fmt::format("{} more node{} joined", more, more == 1 ? "" : "s"));
}

bool Coordinator::all_succeeded() const {
  return std::all_of(roster_.members().begin(), roster_.members().end(),
                     [](const auto& m) { return !m.second.takes_part || m.second.succeeded; });
}

Member* Coordinator::participant(MemberId id, int generation) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kStopping) return nullptr;
  Member* member = roster_.find(id);
  if (member == nullptr || member->lost || !member->takes_part || generation != generation_) return nullptr;
  return member;
}

void Coordinator::succeeded(Time now, MemberId id, int generation) {
  Member* member = participant(id, generation);
  if (member == nullptr || member->stopped) return;
  // Workers that end well after a signal to their launcher were ended by it.
  if (member->leaving && phase_ == Phase::kStopping) {
    stopped(now, id, generation);
    return;
  }
  member->succeeded = true;
  if (all_succeeded()) {
    finish(outcome_of(JobOutcome::Kind::kSuccess, "", restarts_));
  } else if (phase_ == Phase::kRunning && scale_up_) {
    consider_scale_up(now);
  }
}

void Coordinator::stopped(Time now, MemberId id, int generation) {
  Member* member = participant(id, generation);
  if (member == nullptr || phase_ != Phase::kStopping) return;
  member->stopped = true;
  consider_stopped(now);
}

// --- failures and losses ---

void Coordinator::worker_failed(Time now, MemberId id, JobFailure failure) {
  const Member* member = participant(id, failure.generation);
  if (member == nullptr || member->stopped) return;
  failure.kind = JobFailure::Kind::kWorker;
  failure.node_rank = member->node_rank;
  failure.host = member->candidate.node.host;
  if (phase_ == Phase::kStopping && cause_ != Cause::kFailure) {
    // It ended because of the stop.
    if (is_preempted(failure) && !saved_after_signal_) saved_after_signal_ = failure;
    return;
  }
  add_failure(now, failure);
}

void Coordinator::lost(Time now, MemberId id, const Loss& loss) {
  Member* member = roster_.find(id);
  if (member == nullptr || member->lost) return;
  const bool workers_may_run = phase_ == Phase::kRunning || phase_ == Phase::kStopping;
  if (workers_may_run && member->takes_part) {
    lose_participant(now, *member, loss);
    return;
  }
  roster_.erase(id);
  if (phase_ == Phase::kGathering) consider_first_start(now);
  if (phase_ == Phase::kReserving) reconsider_selection(now);
  if (phase_ == Phase::kRunning) consider_scale_up(now);
}

void Coordinator::stuck(Time now, MemberId id, int generation, const Loss& loss) {
  const Member* member = participant(id, generation);
  if (member == nullptr || member->stopped || member->succeeded) return;
  give_up(now, id, loss);
}

void Coordinator::give_up(Time now, MemberId id, const Loss& loss) {
  Member& member = *roster_.find(id);
  // While the generation runs, the reason of its stop holds the same text.
  if (phase_ == Phase::kStopping) {
    const std::string text = fmt::format("{} counts as lost: {}", name_of(member), loss.message);
    for (const auto& [other_id, other] : roster_.members()) {
      if (other_id != id && !other.lost) actions_.emplace_back(Note{other_id, text});
    }
  }
  // The launcher that hosts the coordinator gets the outcome of the job with the others.
  if (!member.candidate.hosts_coordinator) {
    actions_.emplace_back(Finish{
        id, outcome_of(JobOutcome::Kind::kNodeLost, "this node counts as lost: " + loss.message, restarts_)});
  }
  lose_participant(now, member, loss);
}

void Coordinator::give_up_on_late(Time now, int64_t time_us) {
  std::vector<MemberId> late;
  for (const auto& [id, member] : roster_.members()) {
    const bool answered = !member.takes_part || member.lost || member.stopped;
    if (!answered && member.stop_by && now >= *member.stop_by) late.push_back(id);
  }
  for (const MemberId id : late) {
    // The last of them may end the job.
    if (phase_ != Phase::kStopping) return;
    const std::chrono::duration<double> limit = roster_.find(id)->candidate.node.stop_timeout;
    // Its launcher may answer pulses for two timeouts after the Finish, and keeps its workers
    // for one more.
    give_up(now, id,
            {fmt::format("its launcher did not end its workers within {:.0f} s", limit.count()), time_us,
             now + 3 * options_.heartbeat_timeout + options_.lease_margin});
  }
}

void Coordinator::lose_participant(Time now, Member& member, const Loss& loss) {
  const bool nothing_runs = member.stopped || member.succeeded;
  member.lost = nothing_runs ? now : loss.lease_end;
  if (!member.succeeded || phase_ == Phase::kStopping) {
    JobFailure failure;
    failure.kind = JobFailure::Kind::kNode;
    failure.generation = generation_;
    failure.node_rank = member.node_rank;
    failure.host = member.candidate.node.host;
    failure.time_us = loss.time_us;
    failure.message = loss.message;
    add_failure(now, failure);
  }
  if (phase_ == Phase::kStopping) consider_stopped(now);
}

void Coordinator::add_failure(Time now, const JobFailure& failure) {
  if (!first_failure_) first_failure_ = now;
  if (now <= *first_failure_ + options_.root_cause_window) failures_.push_back(failure);
  if (phase_ == Phase::kRunning) begin_stop(now, Cause::kFailure, describe(failure));
}

void Coordinator::leave(Time now, MemberId id, int signal) {
  Member* member = roster_.find(id);
  if (member == nullptr || member->lost || member->leaving) return;
  member->leaving = signal;
  const bool is_host = member->candidate.hosts_coordinator;
  switch (phase_) {
    case Phase::kGathering:
    case Phase::kReserving:
      if (is_host || (!enough() && (is_fixed_size() || generation_ >= 0))) {
        finish(stopped_by_signal());
        return;
      }
      dismiss(id);
      if (phase_ == Phase::kGathering) consider_first_start(now);
      if (phase_ == Phase::kReserving) reconsider_selection(now);
      return;
    case Phase::kRunning:
      // A launcher whose workers have all succeeded is not needed any more.
      if (!is_host && (!member->takes_part || member->succeeded)) {
        dismiss(id);
        consider_scale_up(now);
      } else {
        begin_stop(now, Cause::kLeave,
                   fmt::format("{} was asked to end by {}", name_of(*member), signal_name(signal)));
      }
      return;
    case Phase::kStopping: consider_stopped(now); return;
    case Phase::kFinished: return;
  }
}

void Coordinator::dismiss(MemberId id) {
  const int signal = roster_.find(id)->leaving.value_or(0);
  actions_.emplace_back(Finish{
      id,
      outcome_of(JobOutcome::Kind::kStopped,
                 fmt::format("this launcher left the job by {}", signal_name(signal)), restarts_, signal)});
  roster_.erase(id);
}

// --- time ---

void Coordinator::tick(Time now, int64_t time_us) {
  if (phase_ == Phase::kGathering) consider_first_start(now);
  if (phase_ == Phase::kRunning) consider_scale_up(now);
  if (phase_ == Phase::kStopping) give_up_on_late(now, time_us);
  if (phase_ == Phase::kStopping) consider_stopped(now);
}

std::optional<Coordinator::Time> Coordinator::deadline() const {
  if (phase_ == Phase::kGathering) return last_call_ ? std::min(*last_call_, join_deadline_) : join_deadline_;
  if (phase_ == Phase::kRunning) return scale_up_;
  if (phase_ != Phase::kStopping) return std::nullopt;
  std::optional<Time> last_lease, first_stop;
  bool all_answered = true;
  for (const auto& [id, member] : roster_.members()) {
    if (!member.takes_part) continue;
    if (!member.lost && !member.stopped) {
      all_answered = false;
      if (member.stop_by) first_stop = std::min(first_stop.value_or(Time::max()), *member.stop_by);
    }
    if (member.lost) last_lease = std::max(last_lease.value_or(Time::min()), *member.lost);
  }
  return all_answered ? last_lease : first_stop;
}

// --- stopping a generation and ending the job ---

void Coordinator::begin_stop(Time now, Cause cause, const std::string& reason) {
  phase_ = Phase::kStopping;
  cause_ = cause;
  for (auto& [id, member] : roster_.members()) {
    if (!member.takes_part || member.lost) continue;
    actions_.emplace_back(Stop{id, generation_, reason});
    const std::chrono::milliseconds limit = member.candidate.node.stop_timeout;
    if (limit.count() > 0) member.stop_by = now + limit;
  }
}

void Coordinator::consider_stopped(Time now) {
  bool leases_over = true;
  for (const auto& [id, member] : roster_.members()) {
    if (!member.takes_part) continue;
    if (!member.lost && !member.stopped) return;
    if (member.lost && now < *member.lost) leases_over = false;
  }
  if (const std::optional<JobOutcome> outcome = verdict()) {
    finish(*outcome);
    return;
  }
  if (!leases_over) return;

  if (root_cause() != nullptr) ++restarts_;
  std::vector<MemberId> gone, leaving;
  for (const auto& [id, member] : roster_.members()) {
    if (member.lost) gone.push_back(id);
    if (member.leaving && !member.lost) leaving.push_back(id);
  }
  for (const MemberId id : gone) roster_.erase(id);
  for (const MemberId id : leaving) dismiss(id);
  phase_ = Phase::kReserving;
  ask_for_store_port(roster_.select(options_.max_nodes).front());
}

std::optional<JobOutcome> Coordinator::verdict() const {
  const JobFailure* root = root_cause();
  if (root != nullptr && is_preempted(*root)) {
    JobOutcome outcome =
        outcome_of(JobOutcome::Kind::kPreempted, describe(*root) + ": it was preempted", restarts_);
    outcome.failure = *root;
    return outcome;
  }
  const bool host_leaves = std::any_of(roster_.members().begin(), roster_.members().end(), [](const auto& m) {
    return m.second.leaving && m.second.candidate.hosts_coordinator;
  });
  if (host_leaves) return stopped_by_signal();
  if (root != nullptr && restarts_ >= options_.max_restarts) return failed(*root);
  const bool host_lost = std::any_of(roster_.members().begin(), roster_.members().end(), [](const auto& m) {
    return m.second.lost && m.second.candidate.hosts_coordinator;
  });
  if (enough() && !host_lost) return std::nullopt;
  const bool someone_leaves = std::any_of(roster_.members().begin(), roster_.members().end(),
                                          [](const auto& m) { return m.second.leaving.has_value(); });
  if (someone_leaves || root == nullptr) return stopped_by_signal();
  JobOutcome outcome = failed(*root);
  outcome.kind = JobOutcome::Kind::kNodeLost;
  outcome.reason += host_lost ? "; no restart without the node that hosts the job"
                              : fmt::format("; {} left of at least {}",
                                            count_of(roster_.num_available(), "node"), options_.min_nodes);
  return outcome;
}

const JobFailure* Coordinator::root_cause() const {
  const auto earliest =
      std::min_element(failures_.begin(), failures_.end(),
                       [](const JobFailure& a, const JobFailure& b) { return a.time_us < b.time_us; });
  return earliest == failures_.end() ? nullptr : &*earliest;
}

JobOutcome Coordinator::failed(const JobFailure& root) const {
  const bool node = root.kind == JobFailure::Kind::kNode;
  JobOutcome outcome;
  outcome.kind = node ? JobOutcome::Kind::kNodeLost : JobOutcome::Kind::kWorkerFailed;
  outcome.reason = describe(root);
  if (options_.max_restarts > 0 && restarts_ >= options_.max_restarts) {
    outcome.reason += fmt::format("; no restart is left of {}", options_.max_restarts);
  }
  outcome.failure = root;
  outcome.restart_count = restarts_;
  return outcome;
}

JobOutcome Coordinator::stopped_by_signal() const {
  const Member* first = nullptr;
  for (const auto& [id, member] : roster_.members()) {
    if (!member.leaving) continue;
    // The signal to the launcher that hosts the job decides.
    if (first == nullptr || member.candidate.hosts_coordinator) first = &member;
  }
  JobOutcome outcome;
  outcome.kind = saved_after_signal_ ? JobOutcome::Kind::kPreempted : JobOutcome::Kind::kStopped;
  outcome.failure = saved_after_signal_;
  outcome.signal = first == nullptr ? 0 : *first->leaving;
  outcome.reason =
      fmt::format("the launcher on {} was asked to end by {}",
                  first == nullptr ? "a lost node" : first->candidate.node.host, signal_name(outcome.signal));
  outcome.restart_count = restarts_;
  return outcome;
}

void Coordinator::finish(const JobOutcome& outcome) {
  for (const auto& [id, member] : roster_.members()) {
    const bool knows = member.lost && !member.candidate.hosts_coordinator;
    if (!knows) actions_.emplace_back(Finish{id, outcome});
  }
  phase_ = Phase::kFinished;
  end_ = outcome.kind == JobOutcome::Kind::kSuccess ? "it succeeded" : outcome.reason;
  roster_ = Roster();
}

// --- stalls ---

void Coordinator::progress(Time now, MemberId id, int generation, std::vector<RankView> workers) {
  Member* member = participant(id, generation);
  if (member == nullptr || phase_ != Phase::kRunning) return;
  if (workers.size() != static_cast<size_t>(member->candidate.node.local_world_size)) return;
  member->workers = std::move(workers);
  member->workers_seen = now;
  member->workers_idle = all_idle(member->workers, options_.stall_timeout);
  consider_stall(now);
}

void Coordinator::consider_stall(Time now) {
  // A member whose workers have succeeded may have left or died since.
  std::vector<const Member*> members(map_->nodes.size());
  for (const auto& [id, member] : roster_.members()) {
    if (!member.takes_part || member.lost) continue;
    if (!member.workers_idle) stall_reported_ = false;
    // A report that is twice as old as it should be: the workers may have progressed since.
    const bool known = !member.workers.empty() && now - member.workers_seen <= options_.stall_timeout / 2;
    if (!known || !member.workers_idle) return;
    members[static_cast<size_t>(member.node_rank)] = &member;
  }
  if (stall_reported_) return;
  std::vector<RankView> ranks;
  for (size_t node = 0; node < members.size(); ++node) {
    for (int i = 0; i < map_->nodes[node].local_world_size; ++i) {
      RankView& view = ranks.emplace_back();
      view.ended = true;
      if (members[node] != nullptr) view = members[node]->workers[static_cast<size_t>(i)];
      view.rank = static_cast<int>(ranks.size()) - 1;
      view.host = map_->nodes[node].host;
    }
  }
  std::optional<Stall> stall = find_stall(ranks, options_.stall_timeout);
  if (!stall) return;
  stall_reported_ = true;
  const auto shared = std::make_shared<const Stall>(*std::move(stall));
  for (const auto& [id, member] : roster_.members()) {
    if (member.takes_part && !member.lost) actions_.emplace_back(Stalled{id, generation_, shared});
  }
}

}  // namespace lockstep::launcher
