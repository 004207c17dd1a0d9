#include "launch/agent/failure_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <sstream>

namespace lockstep::launcher {
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
  report +=
      fmt::format("  at {}, in the job's life number {}\n", time_text(failure.time_us), failure.generation);
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
  // Of a failed worker the reason would say the same once more.
  if (outcome.kind != JobOutcome::Kind::kWorkerFailed) report += fmt::format("  {}\n", outcome.reason);
  if (outcome.restart_count > 0) report += fmt::format("  after {} restarts\n", outcome.restart_count);
  return report;
}

}  // namespace lockstep::launcher
