// Nodes whose workers do not end, and launchers that do not answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/exit_status.h>

#include <csignal>

#include "unit/launch/rendezvous/test_job.h"

namespace lockstep::launcher {
namespace {

using namespace testing_job;  // NOLINT(google-build-using-namespace): all of it
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = JobOutcome::Kind;

constexpr char kHeld[] = "rank 1 (pid 7) did not end";

TEST(CoordinatorStuckTest, ANodeWhoseWorkersDoNotEndIsLostAndTheOthersGoOn) {
  Job job(nodes(1, 2, 1));
  job.join(1, 0, /*host=*/true);
  job.join(2, 1);
  job.fail(1);
  job.stopped(1);
  EXPECT_EQ(job.generation(), 0);
  job.pass(seconds(20));
  job.stuck(2, kHeld);
  EXPECT_THAT(job.told[1], ElementsAre(HasSubstr("node 1 (host2) counts as lost: rank 1 (pid 7)")));
  ASSERT_EQ(job.finishes[2].size(), 1u);
  EXPECT_EQ(job.finishes[2].at(0).status(), kExitNodeLost);
  EXPECT_THAT(job.finishes[2].at(0).reason, HasSubstr("this node counts as lost: rank 1 (pid 7)"));
  EXPECT_EQ(job.generation(), 1);
  EXPECT_THAT(job.order(), ElementsAre(1));
  job.stopped(2);  // it has ended after all: no news any more
  job.succeed(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
  EXPECT_EQ(job.finishes[2].size(), 1u);
}

TEST(CoordinatorStuckTest, WithoutABudgetTheFirstFailureIsTheOutcome) {
  Job job(nodes(2, 2));
  job.join(1, 0, /*host=*/true);
  job.join(2, 1);
  job.fail(1, 100, 7);
  job.stopped(1);
  job.stuck(2, kHeld, /*time_us=*/200);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kWorkerFailed);
  EXPECT_EQ(job.finishes[1].at(0).status(), 7);
}

TEST(CoordinatorStuckTest, TheHostOfTheJobTakesItWithItWhenTheOthersHaveStopped) {
  Job job(nodes(1, 2, 5));
  job.join(1, 0, /*host=*/true);
  job.join(2, 1);
  job.fail(2, 100, 7);
  job.stuck(1, kHeld, /*time_us=*/200);
  EXPECT_THAT(job.finishes, IsEmpty());
  job.stopped(2);
  for (const MemberId id : {1, 2}) {
    ASSERT_EQ(job.finishes[id].size(), 1u) << id;
    EXPECT_EQ(job.finishes[id].at(0).kind, Kind::kNodeLost);
    EXPECT_THAT(job.finishes[id].at(0).reason, HasSubstr("no restart without the node that hosts the job"));
  }
}

TEST(CoordinatorStuckTest, AWorkerThatOutlivesASignalToItsLauncherKeepsTheSignalsStatus) {
  Job job(nodes(1, 1, 5));
  job.join(1, 0, /*host=*/true);
  job.leave(1, SIGTERM);
  job.stuck(1, kHeld);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kStopped);
  EXPECT_EQ(job.finishes[1].at(0).status(), 128 + SIGTERM);
}

// A rank that others wait for was killed and did not end: nobody has been told to stop.
TEST(CoordinatorStuckTest, OneThatWasKilledWhileTheJobRanStopsTheOthers) {
  Job job(nodes(1, 2, 1));
  job.join(1, 0, /*host=*/true);
  job.join(2, 1);
  job.stuck(2, kHeld);
  ASSERT_EQ(job.stops.size(), 1u);
  EXPECT_EQ(job.stops[0].to, 1u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("node 1 (host2) is lost: rank 1 (pid 7)"));
  job.stopped(1);
  EXPECT_EQ(job.generation(), 1);
}

TEST(CoordinatorStuckTest, ALauncherThatDoesNotAnswerInTimeIsLost) {
  Job job(nodes(1, 2, 1));
  job.join(1, 0, /*host=*/true, 1, seconds(60));
  job.join(2, 1, /*host=*/false, 1, seconds(80));
  job.fail(1);
  job.stopped(1);
  job.pass(milliseconds(79'999));
  EXPECT_EQ(job.finishes.count(2), 0u);
  job.pass(milliseconds(1));
  ASSERT_EQ(job.finishes[2].size(), 1u);
  EXPECT_THAT(job.finishes[2].at(0).reason, HasSubstr("did not end its workers within 80 s"));
  EXPECT_THAT(job.told[1], ElementsAre(HasSubstr("node 1 (host2) counts as lost")));
  // It may have workers until it has heard of it, or its lease is over.
  EXPECT_EQ(job.generation(), 0);
  job.pass(seconds(10));
  EXPECT_EQ(job.generation(), 1);
  EXPECT_THAT(job.order(), ElementsAre(1));
}

TEST(CoordinatorStuckTest, ALauncherThatAnswersInTimeStays) {
  Job job(nodes(2, 2, 1));
  job.join(1, 0, /*host=*/true, 1, seconds(60));
  job.join(2, 1, /*host=*/false, 1, seconds(60));
  job.fail(1);
  job.stopped(1);
  job.pass(seconds(59));
  job.stopped(2);
  ASSERT_EQ(job.generation(), 1);
  job.pass(seconds(1000));
  EXPECT_THAT(job.finishes, IsEmpty());
}

}  // namespace
}  // namespace lockstep::launcher
