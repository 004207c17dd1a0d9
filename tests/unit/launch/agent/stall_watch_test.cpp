#include "launch/agent/stall_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

RankView rank(int number, uint64_t started, uint64_t finished, int idle_s) {
  RankView view;
  view.rank = number;
  view.progress.told = true;
  view.progress.step = 5;
  view.progress.phase = base::Phase::kBackward;
  view.progress.collectives_started = started;
  view.progress.collectives_finished = finished;
  view.progress.operation = "all_reduce";
  view.progress.idle_ns = idle_s * 1'000'000'000LL;
  return view;
}

TEST(StallWatchTest, NamesWhoWaitsAndWhoIsMissing) {
  const auto stall = find_stall({rank(4, 9, 8, 31), rank(5, 8, 8, 40)}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->waiting, ElementsAre(0));
  EXPECT_THAT(stall->missing, ElementsAre(1));
  EXPECT_EQ(stall->report,
            "[run] no rank has moved for 30 s:\n"
            "  rank 4 waits in all_reduce (its collective number 9; step 5, backward) for 31 s\n"
            "  rank 5 has not arrived: its last collective was number 8, all_reduce; step 5, backward; no "
            "change for 40 s\n");
}

TEST(StallWatchTest, WhereAnybodyMovesThereIsNone) {
  EXPECT_FALSE(find_stall({rank(0, 9, 8, 31), rank(1, 8, 8, 29)}, seconds(30)));
}

TEST(StallWatchTest, WhereNobodyWaitsThereIsNone) {
  EXPECT_FALSE(find_stall({rank(0, 8, 8, 300), rank(1, 8, 8, 300)}, seconds(30)));
}

TEST(StallWatchTest, ProgramsThatDoNotTellAreLeftAlone) {
  EXPECT_FALSE(find_stall({RankView{}, RankView{}}, seconds(30)));
}

TEST(StallWatchTest, ARankThatHasNotSaidAnythingIsMissing) {
  RankView silent;
  silent.rank = 1;
  const auto stall = find_stall({rank(0, 1, 0, 31), silent}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->missing, ElementsAre(1));
  EXPECT_THAT(stall->report, testing::HasSubstr("rank 1 has not said anything yet"));
}

TEST(StallWatchTest, ARankThatHasEndedIsMissing) {
  RankView gone = rank(1, 3, 3, 90);
  gone.ended = true;
  const auto stall = find_stall({rank(0, 4, 3, 31), gone}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->report, testing::HasSubstr("rank 1 has ended"));
}

TEST(StallWatchTest, AllHereMeansAnotherNodesIsMissing) {
  const auto stall = find_stall({rank(0, 4, 3, 31), rank(1, 4, 3, 31)}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_TRUE(stall->missing.empty());
  EXPECT_THAT(stall->report, testing::HasSubstr("another node's has not"));
}

}  // namespace
}  // namespace lockstep::launcher
