#include "launcher/job.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <cstring>
#include <ctime>
#include <numeric>
#include <sstream>
#include <utility>

namespace lockstep::launcher {
namespace {

// The ranks of the first `end` nodes, of this role only; nullptr: of any role.
int count_ranks(const std::vector<NodeInfo>& nodes, size_t end, const std::string* role) {
  return std::accumulate(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(end), 0,
                         [role](int sum, const NodeInfo& node) {
                           return role == nullptr || node.role == *role ? sum + node.local_world_size : sum;
                         });
}

}  // namespace

int Generation::world_size() const { return count_ranks(nodes, nodes.size(), nullptr); }

int Generation::first_rank() const { return count_ranks(nodes, static_cast<size_t>(node_rank), nullptr); }

int Generation::role_world_size() const { return count_ranks(nodes, nodes.size(), &nodes[node_rank].role); }

int Generation::role_first_rank() const {
  return count_ranks(nodes, static_cast<size_t>(node_rank), &nodes[node_rank].role);
}

int JobOutcome::status() const {
  switch (kind) {
    case Kind::kSuccess: return kExitSuccess;
    case Kind::kWorkerFailed: return failure ? failure->state.status() : kExitFailure;
    case Kind::kNodeLost: return kExitNodeLost;
    case Kind::kStopped: return 128 + signal;
    case Kind::kPreempted: return kExitPreempted;
    case Kind::kRendezvousFailed: return kExitRendezvous;
  }
  return kExitInternal;
}

bool is_preempted(const JobFailure& failure) {
  return failure.kind == JobFailure::Kind::kWorker && !failure.state.signaled &&
         failure.state.code == kExitPreempted;
}

std::string describe(const JobFailure& failure) {
  if (failure.kind == JobFailure::Kind::kNode) {
    return fmt::format("node {} ({}) is lost: {}", failure.node_rank, failure.host, failure.message);
  }
  return fmt::format("rank {} on {} ended with {}", failure.rank, failure.host, failure.state.to_string());
}

JobOutcome outcome_of(JobOutcome::Kind kind, std::string reason, int restart_count, int signal) {
  JobOutcome outcome;
  outcome.kind = kind;
  outcome.reason = std::move(reason);
  outcome.restart_count = restart_count;
  outcome.signal = signal;
  return outcome;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string count_of(int number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

// --- the report of a job's end ---

namespace {

std::string time_text(int64_t time_us) {
  const std::time_t seconds = time_us / 1'000'000;
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}", fmt::localtime(seconds), time_us / 1000 % 1000);
}

std::string how_it_ended(const JobFailure& failure) {
  std::string text = failure.state.to_string();
  if (failure.out_of_memory) text += ", out of memory: the kernel killed it";
  return text;
}

std::string who(const JobFailure& failure) {
  if (failure.kind == JobFailure::Kind::kNode) {
    return fmt::format("node {} ({})", failure.node_rank, failure.host);
  }
  return fmt::format("rank {} (local rank {} of node {}, {}, pid {})", failure.rank, failure.local_rank,
                     failure.node_rank, failure.host, failure.pid);
}

std::string what(const JobFailure& failure) {
  return failure.kind == JobFailure::Kind::kNode ? failure.message : how_it_ended(failure);
}

void append_indented(std::string& report, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) report += fmt::format("    {}\n", line);
}

void append_details(std::string& report, const JobFailure& failure) {
  report += fmt::format("  at {}, in generation {}\n", time_text(failure.time_us), failure.generation);
  if (failure.kind == JobFailure::Kind::kNode) return;
  if (!failure.message.empty()) {
    report += failure.error_file.empty() ? "" : "  its error file says:\n";
    append_indented(report, failure.message);
  } else if (!failure.last_lines.empty()) {
    report += "  the last lines of its standard error:\n";
    for (const std::string& line : failure.last_lines) report += fmt::format("    {}\n", line);
  }
}

}  // namespace

std::string format_outcome(const std::string& component, const JobOutcome& outcome) {
  if (outcome.kind == JobOutcome::Kind::kSuccess) return "";
  if (!outcome.failure) return fmt::format("[{}] {}\n", component, outcome.reason);
  const JobFailure& failure = *outcome.failure;
  std::string report = fmt::format("[{}] {} failed first: {}\n", component, who(failure), what(failure));
  append_details(report, failure);
  // For a failed worker the reason would repeat the first line.
  if (outcome.kind != JobOutcome::Kind::kWorkerFailed) report += fmt::format("  {}\n", outcome.reason);
  if (outcome.restart_count > 0) report += fmt::format("  after {} restarts\n", outcome.restart_count);
  return report;
}

}  // namespace lockstep::launcher
