// Failures, losses, leaving and preemption; nodes whose workers do not end, and launchers that do
// not answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <csignal>

#include "unit/launcher/rendezvous/test_job.h"

namespace lockstep::launcher {
namespace {

using namespace testing_job;  // NOLINT(google-build-using-namespace): all of it
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = JobOutcome::Kind;

TEST(CoordinatorFailureTest, OneFailureStopsAllThenFails) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.fail(2, 100, 7);
  ASSERT_EQ(job.stops.size(), 2u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("rank 2 on host2 ended with exit code 7"));
  EXPECT_THAT(job.finishes, IsEmpty());
  job.all_stopped();
  const JobOutcome& outcome = job.finishes[1].at(0);
  EXPECT_EQ(outcome.kind, Kind::kWorkerFailed);
  EXPECT_EQ(outcome.status(), 7);
  EXPECT_EQ(outcome.failure->host, "host2");
}

TEST(CoordinatorFailureTest, RestartsOnTheGlobalBudgetAndNoMore) {
  Job job(nodes(2, 2, /*max_restarts=*/2));
  job.join(1);
  job.join(2);
  for (int restart = 1; restart <= 2; ++restart) {
    job.fail(1 + restart % 2);
    job.stopped(1);
    EXPECT_EQ(job.generation(), restart - 1);  // the other one still runs
    job.stopped(2);
    EXPECT_EQ(job.generation(), restart);
    EXPECT_EQ(job.map().restart_count, restart);
    EXPECT_THAT(job.order(), ElementsAre(1, 2));
  }
  job.fail(1);
  job.all_stopped();
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kWorkerFailed);
  EXPECT_EQ(job.finishes[2].at(0).restart_count, 2);
  EXPECT_EQ(job.num_starts(), 3);
}

TEST(CoordinatorFailureTest, SeveralFailuresOfAGenerationCountOnce) {
  Job job(nodes(2, 2, 1));
  job.join(1);
  job.join(2);
  job.fail(1);
  job.fail(2);
  job.all_stopped();
  EXPECT_EQ(job.map().restart_count, 1);
}

TEST(CoordinatorFailureTest, TheEarliestFailureIsTheRootCause) {
  Job job(nodes(3, 3));
  for (const MemberId id : {1, 2, 3}) job.join(id);
  job.fail(1, 500, 1);
  job.pass(milliseconds(100));
  job.fail(3, 200, 3);
  job.pass(seconds(10));
  job.fail(2, 100, 2);  // after the root cause window
  job.all_stopped();
  EXPECT_EQ(job.finishes[1].at(0).status(), 3);
  EXPECT_EQ(job.finishes[1].at(0).failure->node_rank, 2);
}

TEST(CoordinatorFailureTest, NewsOfAnEarlierGenerationIsNone) {
  Job job(nodes(1, 1, 3));
  job.join(1);
  job.fail(1);
  job.stopped(1);
  ASSERT_EQ(job.generation(), 1);
  Coordinator coordinator(job.coordinator());
  JobFailure old;
  old.generation = 0;
  coordinator.worker_failed({}, 1, old);
  coordinator.succeeded({}, 1, 0);
  coordinator.stopped({}, 1, 0);
  EXPECT_THAT(coordinator.take_actions(), IsEmpty());
}

TEST(CoordinatorFailureTest, ALostNodeIsWaitedForUntilItsLeaseIsOver) {
  Job job(nodes(2, 3, 1));
  for (const MemberId id : {1, 2, 3}) job.join(id);
  job.lose(2, milliseconds(1700));
  EXPECT_EQ(job.stops.size(), 2u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("node 1 (host2) is lost: the cable is out"));
  job.stopped(1);
  job.stopped(3);
  job.pass(milliseconds(1699));
  EXPECT_EQ(job.generation(), 0);
  job.pass(milliseconds(1));
  EXPECT_EQ(job.generation(), 1);
  EXPECT_THAT(job.order(), ElementsAre(1, 3));
  EXPECT_EQ(job.map().restart_count, 1);
}

TEST(CoordinatorFailureTest, TooFewLeftEndsTheJobAtOnce) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.lose(2, seconds(2));
  job.stopped(1);
  const JobOutcome& outcome = job.finishes[1].at(0);
  EXPECT_EQ(outcome.kind, Kind::kNodeLost);
  EXPECT_EQ(outcome.status(), kExitNodeLost);
  EXPECT_THAT(outcome.reason, HasSubstr("1 node left of at least 2"));
  EXPECT_EQ(job.finishes.count(2), 0u);
}

TEST(CoordinatorFailureTest, ALostNodeWithoutABudgetEndsTheJob) {
  Job job(nodes(1, 2, 0));
  job.join(1);
  job.join(2);
  job.lose(2, seconds(2));
  job.stopped(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kNodeLost);
}

TEST(CoordinatorFailureTest, ASpareTakesTheLostPlaceAndNobodyMoves) {
  Job job(nodes(3, 3, 1));
  for (const MemberId id : {1, 2, 3, 4}) job.join(id);
  EXPECT_THAT(job.order(), ElementsAre(1, 2, 3));
  job.lose(2);
  job.stopped(1);
  job.stopped(3);
  EXPECT_THAT(job.order(), ElementsAre(1, 4, 3));
}

TEST(CoordinatorFailureTest, ANodeThatWasLostAfterItsSuccessIsNotMissed) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.succeed(2);
  job.lose(2);
  EXPECT_THAT(job.stops, IsEmpty());
  job.succeed(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorFailureTest, ALeaverIsLetGoWhereEnoughRemain) {
  Job job(nodes(1, 2, 0));
  job.join(1);
  job.join(2);
  job.leave(2, SIGUSR2);
  ASSERT_EQ(job.stops.size(), 2u);
  EXPECT_THAT(job.stops[0].reason, HasSubstr("node 1 (host2) was asked to end by SIGUSR2"));
  job.all_stopped();
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
  EXPECT_EQ(job.finishes[2].at(0).status(), 128 + SIGUSR2);
  EXPECT_THAT(job.order(), ElementsAre(1));
  EXPECT_EQ(job.map().restart_count, 0);
  EXPECT_EQ(job.finishes.count(1), 0u);
}

TEST(CoordinatorFailureTest, ALeaverThatIsNeededEndsTheJob) {
  Job job(nodes(2, 2, 3));
  job.join(1);
  job.join(2);
  job.leave(2, SIGINT);
  job.all_stopped();
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kStopped);
  EXPECT_EQ(job.finishes[1].at(0).status(), 128 + SIGINT);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
}

// As when a scheduler ends all launchers of a job at once.
TEST(CoordinatorFailureTest, WorkersThatEndWellAfterASignalAreNoSuccess) {
  Job job(nodes(2, 2, 3));
  job.join(1);
  job.join(2);
  job.leave(2, SIGTERM);
  job.leave(1, SIGTERM);
  job.succeed(2);
  job.succeed(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kStopped);
  EXPECT_EQ(job.finishes[1].at(0).status(), 128 + SIGTERM);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
}

TEST(CoordinatorFailureTest, TheHostTakesTheJobWithIt) {
  Job job(nodes(1, 2, 3));
  job.join(1, std::nullopt, /*host=*/true);
  job.join(2);
  job.leave(1);
  job.all_stopped();
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
}

TEST(CoordinatorFailureTest, PreemptionEndsTheJobInSpiteOfTheBudget) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.fail(2, 200, kExitCommunication);
  job.fail(1, 100, kExitPreempted);
  job.all_stopped();
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kPreempted);
  EXPECT_EQ(job.finishes[1].at(0).status(), kExitPreempted);
}

TEST(CoordinatorFailureTest, WorkersThatSaveWhenAFailureStopsThemDoNotPreemptTheJob) {
  Job job(nodes(2, 2, 5));
  job.join(1);
  job.join(2);
  job.fail(2, 100, 1);
  job.fail(1, 200, kExitPreempted);
  job.all_stopped();
  EXPECT_EQ(job.generation(), 1);
}

TEST(CoordinatorFailureTest, WorkersThatSaveWhenASignalStopsTheJobPreemptIt) {
  Job job(nodes(1, 1, 5));
  job.join(1);
  job.leave(1);
  job.fail(1, 100, kExitPreempted);
  job.stopped(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kPreempted);
}

TEST(CoordinatorFailureTest, ALostLauncherComesBackUnderItsRank) {
  Job job(nodes(2, 2, 1));
  job.join(1, 0);
  job.join(2, 1);
  job.join(3);  // a spare keeps the job alive
  job.lose(2, seconds(1));
  job.join(4, 1);
  job.stopped(1);
  job.pass(seconds(1));
  EXPECT_THAT(job.order(), ElementsAre(1, 4));
}

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
  EXPECT_THAT(job.notes[1], ElementsAre(HasSubstr("node 1 (host2) counts as lost: rank 1 (pid 7)")));
  ASSERT_EQ(job.finishes[2].size(), 1u);
  EXPECT_EQ(job.finishes[2].at(0).status(), kExitNodeLost);
  EXPECT_THAT(job.finishes[2].at(0).reason, HasSubstr("this node counts as lost: rank 1 (pid 7)"));
  EXPECT_EQ(job.generation(), 1);
  EXPECT_THAT(job.order(), ElementsAre(1));
  job.stopped(2);  // too late: ignored
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

// A rank that others wait for was killed and did not end, before any Stop.
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
  EXPECT_THAT(job.notes[1], ElementsAre(HasSubstr("node 1 (host2) counts as lost")));
  // It may have workers until it gets the Finish or its lease ends.
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
