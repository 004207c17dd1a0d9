// How a generation stops, what is decided then, and how the job ends.

#include <fmt/format.h>
#include <lockstep/exit_status.h>

#include <algorithm>

#include "launch/rendezvous/coordinator.h"
#include "launch/rendezvous/describe.h"

namespace lockstep::launcher {

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
                              : fmt::format("; {} left of at least {}", count_nodes(roster_.num_available()),
                                            options_.min_nodes);
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
    // The launcher that hosts the job speaks for it.
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

}  // namespace lockstep::launcher
