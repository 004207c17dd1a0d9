// Stalls over all nodes: which ranks wait for which.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/launcher/rendezvous/test_cluster.h"
#include "unit/launcher/rendezvous/test_job.h"

namespace lockstep::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_job::Job;
using testing_job::nodes;
using testing_job::seconds;

// A worker that has started as many collectives and finished all but the last, or all.
RankView worker(uint64_t started, bool waits, int idle_s) {
  RankView view;
  view.progress.reports = true;
  view.progress.collectives_started = started;
  view.progress.collectives_finished = started - (waits ? 1 : 0);
  view.progress.operation = "all_reduce";
  view.progress.idle_ns = idle_s * 1'000'000'000LL;
  return view;
}

class CoordinatorStallTest : public testing::Test {
 protected:
  CoordinatorStallTest() {
    job.join(1, std::nullopt, false, 2);
    job.join(2);
  }
  Job job{nodes(2, 2, 1)};
};

TEST_F(CoordinatorStallTest, EveryNodeIsToldWhichRankOfWhichHostIsMissing) {
  job.progress(1, {worker(9, true, 31), worker(9, true, 32)});
  EXPECT_THAT(job.stalls, IsEmpty()) << "the other node may move";
  job.progress(2, {worker(8, false, 40)});
  ASSERT_EQ(job.stalls.size(), 2u);
  EXPECT_EQ(job.stalls[0].to, 1u);
  EXPECT_EQ(job.stalls[1].to, 2u);
  EXPECT_THAT(job.stalls[0].stall->missing, ElementsAre(2));
  EXPECT_THAT(job.stalls[0].stall->report, HasSubstr("ranks 0-1 wait in all_reduce"));
  EXPECT_THAT(job.stalls[0].stall->report, HasSubstr("rank 2 on host2 has not arrived"));
}

TEST_F(CoordinatorStallTest, IsToldOnceUntilSomebodyMoves) {
  const std::vector<RankView> waiting{worker(9, true, 31), worker(9, true, 31)};
  job.progress(1, waiting);
  job.progress(2, {worker(8, false, 31)});
  job.progress(1, waiting);
  job.progress(2, {worker(8, false, 39)});
  EXPECT_EQ(job.stalls.size(), 2u);
  job.progress(2, {worker(9, false, 0)});
  job.progress(1, {worker(9, false, 1), worker(9, false, 1)});
  job.progress(1, {worker(10, true, 31), worker(10, true, 31)});
  EXPECT_EQ(job.stalls.size(), 2u);
  job.progress(2, {worker(9, false, 32)});
  EXPECT_EQ(job.stalls.size(), 4u);
}

TEST_F(CoordinatorStallTest, WhatWasToldLongAgoDoesNotCount) {
  job.progress(1, {worker(9, true, 31), worker(9, true, 31)});
  job.pass(seconds(16));
  job.progress(2, {worker(8, false, 40)});
  EXPECT_THAT(job.stalls, IsEmpty());
}

TEST_F(CoordinatorStallTest, AnotherGenerationStartsAnew) {
  job.progress(1, {worker(9, true, 31), worker(9, true, 31)});
  job.fail(2);
  job.all_stopped();
  ASSERT_EQ(job.generation(), 1);
  job.progress(2, {worker(8, false, 40)});
  EXPECT_THAT(job.stalls, IsEmpty());
}

TEST_F(CoordinatorStallTest, RanksOfANodeThatHasSucceededAndLeftHaveEnded) {
  job.succeed(2);
  job.leave(2);
  ASSERT_EQ(job.finishes[2].size(), 1u);
  job.progress(1, {worker(9, true, 31), worker(9, true, 31)});
  ASSERT_EQ(job.stalls.size(), 1u);
  EXPECT_EQ(job.stalls[0].to, 1u);
  EXPECT_THAT(job.stalls[0].stall->report, HasSubstr("rank 2 on host2 has ended"));
}

TEST_F(CoordinatorStallTest, ReportsOfOtherNumbersOfWorkersAreIgnored) {
  job.progress(1, {worker(9, true, 31)});
  job.progress(2, {worker(8, false, 40), worker(8, false, 40)});
  EXPECT_THAT(job.stalls, IsEmpty());
}

TEST(StallOverSocketsTest, AllLaunchersGetTheReport) {
  testing_cluster::Cluster cluster(testing_cluster::quick(2, 2));
  cluster.add("a", 0);
  cluster.add("b", 1);
  ASSERT_TRUE(cluster.all_run(0));
  cluster.launchers[0]->membership->progress(0, {worker(3, true, 31)});
  cluster.launchers[1]->membership->progress(0, {worker(2, false, 31)});
  for (const auto& launcher : cluster.launchers) {
    ASSERT_TRUE(cluster.run_until([&] { return !launcher->stalls.empty(); }));
    EXPECT_THAT(launcher->stalls[0].missing, ElementsAre(1));
    EXPECT_THAT(launcher->stalls[0].report,
                HasSubstr("rank 0 on a waits in all_reduce (its collective number 3;"));
    EXPECT_THAT(launcher->stalls[0].report, HasSubstr("rank 1 on b has not arrived"));
  }
}

TEST(StallAloneTest, OneNodeNeedsNoSockets) {
  base::EventLoop loop;
  testing_cluster::Launcher launcher;
  launcher.membership = join_alone(loop, testing_cluster::node("a"), testing_cluster::quick(1, 1), launcher);
  ASSERT_TRUE(testing_cluster::run_until(loop, [&] { return launcher.running == 0; }));
  launcher.membership->progress(0, {worker(3, true, 31)});
  EXPECT_THAT(launcher.stalls, IsEmpty()) << "called from inside progress()";
  ASSERT_TRUE(testing_cluster::run_until(loop, [&] { return !launcher.stalls.empty(); }));
  EXPECT_THAT(launcher.stalls[0].report, HasSubstr("all ranks have arrived"));
}

}  // namespace
}  // namespace lockstep::launcher
