#include "launcher/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

JobOutcome killed_worker() {
  JobFailure failure;
  failure.generation = 2;
  failure.node_rank = 1;
  failure.host = "gpu07";
  failure.rank = 5;
  failure.local_rank = 1;
  failure.pid = 4711;
  failure.state = {.signaled = true, .code = SIGKILL};
  failure.last_lines = {"allocating", "more"};
  JobOutcome outcome;
  outcome.kind = JobOutcome::Kind::kWorkerFailed;
  outcome.reason = "rank 5 on gpu07 ended with signal 9 (SIGKILL)";
  outcome.failure = failure;
  outcome.restart_count = 2;
  return outcome;
}

TEST(FailureReportTest, NamesRankHostPidSignalAndLastLines) {
  const std::string report = format_outcome("run", killed_worker());
  EXPECT_THAT(
      report,
      StartsWith(
          "[run] rank 5 (local rank 1 of node 1, gpu07, pid 4711) failed first: signal 9 (SIGKILL)\n"));
  EXPECT_THAT(report, HasSubstr("  the last lines of its standard error:\n    allocating\n    more\n"));
  EXPECT_THAT(report, HasSubstr("  after 2 restarts\n"));
  EXPECT_THAT(report, Not(HasSubstr("memory")));
}

TEST(FailureReportTest, AKillForMemoryIsToldApart) {
  JobOutcome outcome = killed_worker();
  outcome.failure->out_of_memory = true;
  EXPECT_THAT(format_outcome("run", outcome),
              HasSubstr("failed first: signal 9 (SIGKILL), out of memory: the kernel killed it\n"));
}

TEST(FailureReportTest, AnErrorFileStandsForTheLastLines) {
  JobOutcome outcome = killed_worker();
  outcome.failure->message = "Traceback\nValueError: no";
  outcome.failure->error_file = "{}";
  const std::string report = format_outcome("launch", outcome);
  EXPECT_THAT(report, StartsWith("[launch] rank 5 "));
  EXPECT_THAT(report, HasSubstr("  its error file says:\n    Traceback\n    ValueError: no\n"));
  EXPECT_THAT(report, Not(HasSubstr("allocating")));
}

TEST(FailureReportTest, ALostNodeIsNamed) {
  JobOutcome outcome = killed_worker();
  outcome.kind = JobOutcome::Kind::kNodeLost;
  outcome.reason = "node 1 (gpu07) is lost: no sign of life; 1 node left of at least 2";
  outcome.failure->kind = JobFailure::Kind::kNode;
  outcome.failure->message = "no sign of life for 1.5 s";
  const std::string report = format_outcome("run", outcome);
  EXPECT_THAT(report, StartsWith("[run] node 1 (gpu07) failed first: no sign of life for 1.5 s\n"));
  EXPECT_THAT(report, HasSubstr("1 node left of at least 2\n"));
}

TEST(FailureReportTest, SuccessHasNothingToSay) { EXPECT_EQ(format_outcome("run", JobOutcome{}), ""); }

}  // namespace
}  // namespace lockstep::launcher
