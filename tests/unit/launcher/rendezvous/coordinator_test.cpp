// Joining, starting, scaling up, succeeding.

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

TEST(CoordinatorTest, StartsWhenAllAreThere) {
  Job job(nodes(2, 2));
  job.join(1);
  EXPECT_EQ(job.generation(), -1);
  job.join(2, std::nullopt, false, 3);
  EXPECT_EQ(job.generation(), 0);
  EXPECT_THAT(job.order(), ElementsAre(1, 2));
  EXPECT_EQ(job.map().world_size(), 4);  // unequal nodes are fine
  EXPECT_EQ(job.map().master_addr, "10.0.0.1");
  EXPECT_EQ(job.map().master_port, 29500);
  EXPECT_EQ(job.map().nodes[1].node_rank, 1);
}

TEST(CoordinatorTest, LastCallBetweenMinAndMax) {
  Job job(nodes(2, 4));
  job.join(1);
  job.join(2);
  job.pass(seconds(9));
  EXPECT_EQ(job.generation(), -1);
  job.join(3);
  job.pass(milliseconds(999));
  EXPECT_EQ(job.generation(), -1);
  job.pass(milliseconds(1));
  EXPECT_THAT(job.order(), ElementsAre(1, 2, 3));
}

TEST(CoordinatorTest, LastCallEndsWhenTooFewAreLeft) {
  Job job(nodes(2, 4));
  job.join(1);
  job.join(2);
  job.pass(seconds(5));
  job.lose(2);
  job.pass(seconds(20));
  EXPECT_EQ(job.generation(), -1);
  job.join(3);
  job.pass(seconds(9));
  EXPECT_EQ(job.generation(), -1);
  job.pass(seconds(1));
  EXPECT_THAT(job.order(), ElementsAre(1, 3));
}

TEST(CoordinatorTest, FailsWhenTooFewCome) {
  Job job(nodes(3, 3));
  job.join(1);
  job.join(2);
  job.pass(seconds(60));
  ASSERT_EQ(job.finishes[1].size(), 1u);
  EXPECT_EQ(job.finishes[1][0].kind, Kind::kRendezvousFailed);
  EXPECT_EQ(job.finishes[1][0].status(), kExitRendezvous);
  EXPECT_THAT(job.finishes[1][0].reason,
              HasSubstr("2 of at least 3 nodes came within 60 s: host1 (10.0.0.1), host2"));
  ASSERT_EQ(job.finishes[2].size(), 1u);
  job.join(3);
  EXPECT_THAT(job.refused[3], HasSubstr("the job has ended: 2 of at least 3"));
}

TEST(CoordinatorTest, TheHostIsNodeZeroWhereverItComes) {
  Job job(nodes(3, 3));
  job.join(1);
  job.join(2);
  job.join(3, std::nullopt, /*host=*/true);
  EXPECT_THAT(job.order(), ElementsAre(3, 1, 2));
}

TEST(CoordinatorTest, GivenRanksDecideTheOrder) {
  Job job(nodes(3, 3));
  job.join(1, 2, /*host=*/true);
  job.join(2, 0);
  job.join(3, 1);
  EXPECT_THAT(job.order(), ElementsAre(2, 3, 1));
}

TEST(CoordinatorTest, WhoHasNoRankGetsAFreeOne) {
  Job job(nodes(4, 4));
  job.join(1);
  job.join(2, 0);
  job.join(3);
  job.join(4, 2);
  EXPECT_THAT(job.order(), ElementsAre(2, 1, 4, 3));
}

TEST(CoordinatorTest, NothingStartsWithoutTheHost) {
  Job job(nodes(1, 2), /*needs_host=*/true);
  job.join(1);
  job.join(2);
  job.pass(seconds(30));
  EXPECT_EQ(job.generation(), -1);
  job.join(3, std::nullopt, /*host=*/true);
  EXPECT_THAT(job.order(), ElementsAre(3, 1));  // 2 waits as a spare
}

TEST(CoordinatorTest, RefusesDuplicatesAndRanksOutOfRange) {
  Job job(nodes(3, 3));
  job.join(1, 1);
  job.join(2, 1);
  EXPECT_THAT(job.refused[2], HasSubstr("node rank 1 is taken by host1"));
  job.join(3, 3);
  EXPECT_THAT(job.refused[3], HasSubstr("at most 3 nodes"));
  Candidate again;
  again.instance = "instance1";
  job.join(4, again);
  EXPECT_THAT(job.refused[4], HasSubstr("joined already"));
  EXPECT_EQ(job.refused.count(1), 0u);
}

TEST(CoordinatorTest, SucceedsWhenAllHave) {
  Job job(nodes(2, 2));
  job.join(1);
  job.join(2);
  job.succeed(1);
  EXPECT_THAT(job.finishes, IsEmpty());
  job.succeed(2);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ASpareIsToldTheEndToo) {
  Job job(nodes(1, 1));
  job.join(1);
  job.join(2);
  job.succeed(1);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ScalesUpAfterTheLastCallAndFree) {
  Job job(nodes(1, 3, 0));
  job.join(1);
  job.pass(seconds(10));
  ASSERT_EQ(job.generation(), 0);
  job.join(2);
  job.pass(seconds(9));
  EXPECT_THAT(job.stops, IsEmpty());
  job.pass(seconds(1));
  ASSERT_EQ(job.stops.size(), 1u);
  EXPECT_EQ(job.stops[0].reason, "1 more node joined");
  job.stopped(1);
  EXPECT_THAT(job.order(), ElementsAre(1, 2));
  EXPECT_EQ(job.map().restart_count, 0);
  job.join(3);  // that is all there is room for: no need to wait
  EXPECT_EQ(job.stops.size(), 3u);
}

TEST(CoordinatorTest, DoesNotScaleUpNearTheEnd) {
  Job job(nodes(2, 3));
  job.join(1);
  job.join(2);
  job.pass(seconds(10));
  job.succeed(1);
  job.join(3);
  job.pass(seconds(100));
  EXPECT_THAT(job.stops, IsEmpty());
  job.succeed(2);
  EXPECT_EQ(job.finishes[3].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, ASuccessThatCrossesTheStopIsASuccess) {
  Job job(nodes(1, 2));
  job.join(1);
  job.pass(seconds(10));
  job.join(2);
  ASSERT_EQ(job.stops.size(), 1u);
  job.succeed(1);
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kSuccess);
}

TEST(CoordinatorTest, LeavingBeforeTheStart) {
  Job elastic(nodes(2, 3));
  elastic.join(1);
  elastic.leave(1);
  EXPECT_EQ(elastic.finishes[1].at(0).kind, Kind::kStopped);
  EXPECT_FALSE(elastic.coordinator().finished());

  Job fixed(nodes(2, 2));
  fixed.join(1);
  fixed.leave(1);
  EXPECT_TRUE(fixed.coordinator().finished());
}

TEST(CoordinatorTest, ASpareThatLeavesDisturbsNobody) {
  Job job(nodes(1, 1));
  job.join(1);
  job.join(2);
  job.leave(2);
  EXPECT_EQ(job.finishes[2].at(0).kind, Kind::kStopped);
  EXPECT_THAT(job.stops, IsEmpty());
}

TEST(CoordinatorTest, NoPortForTheStoreEndsTheJob) {
  Job job(nodes(1, 1));
  job.answers_port_requests = false;
  job.join(1);
  job.answer_port(1, 0, 0, "all are taken");
  EXPECT_EQ(job.finishes[1].at(0).kind, Kind::kRendezvousFailed);
  EXPECT_THAT(job.finishes[1].at(0).reason, HasSubstr("host1 has no port for the store: all are taken"));
}

TEST(CoordinatorTest, AsksTheNextOneWhenNodeZeroIsLostBeforeTheStart) {
  Job job(nodes(2, 3));
  job.answers_port_requests = false;
  for (const MemberId id : {1, 2, 3}) job.join(id);
  ASSERT_EQ(job.port_requests.size(), 1u);
  EXPECT_EQ(job.port_requests[0].to, 1u);
  job.lose(1);
  ASSERT_EQ(job.port_requests.size(), 2u);
  EXPECT_EQ(job.port_requests[1].to, 2u);
  job.answer_port(1, 0, 1000);
  job.answer_port(2, 0, 2000);
  EXPECT_THAT(job.order(), ElementsAre(2, 3));
  EXPECT_EQ(job.map().master_port, 2000);
  EXPECT_EQ(job.map().master_addr, "10.0.0.2");
}

TEST(CoordinatorTest, OnlyTheLastAnswerOfAPortCounts) {
  Job job(nodes(2, 2));
  job.answers_port_requests = false;
  job.join(1);
  job.join(2);
  job.lose(2);  // back to gathering
  job.join(3);
  ASSERT_EQ(job.port_requests.size(), 2u);
  job.answer_port(1, 0, 1000);
  EXPECT_EQ(job.generation(), -1);
  job.answer_port(1, 0, 1001);
  EXPECT_EQ(job.map().master_port, 1001);
}

TEST(CoordinatorTest, WhoWaitsIsToldWhy) {
  Job job(nodes(1, 2, 1));
  job.join(1);
  job.join(2);
  ASSERT_EQ(job.generation(), 0);
  EXPECT_THAT(job.notes, IsEmpty());
  job.join(3);
  ASSERT_EQ(job.notes[3].size(), 1u);
  EXPECT_THAT(job.notes[3][0], HasSubstr("runs on all of its 2 nodes: this launcher is a spare"));
  job.lose(2);
  job.all_stopped();
  ASSERT_EQ(job.generation(), 1);
  EXPECT_EQ(job.notes[3].size(), 1u) << "it takes part now";

  Job small(nodes(1, 3));
  small.join(1);
  small.pass(seconds(10));
  ASSERT_EQ(small.generation(), 0);
  small.join(2);
  EXPECT_THAT(small.notes[2].at(0), HasSubstr("waits to take part"));
}

}  // namespace
}  // namespace lockstep::launcher
