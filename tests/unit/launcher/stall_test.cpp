#include "launcher/stall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

RankView rank(int number, uint64_t started, uint64_t finished, int idle_s) {
  RankView view;
  view.rank = number;
  view.progress.reports = true;
  view.progress.step = 5;
  view.progress.phase = base::Phase::kBackward;
  view.progress.collectives_started = started;
  view.progress.collectives_finished = finished;
  view.progress.operation = "all_reduce";
  view.progress.idle_ns = idle_s * 1'000'000'000LL;
  return view;
}

TEST(StallTest, NamesWhoWaitsAndWhoIsMissing) {
  const auto stall = find_stall({rank(4, 9, 8, 31), rank(5, 8, 8, 40)}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->waiting, ElementsAre(4));
  EXPECT_THAT(stall->missing, ElementsAre(5));
  EXPECT_EQ(stall->report,
            "no rank has moved for 30 s:\n"
            "  rank 4 waits in all_reduce (its collective number 9; step 5, backward) for 31 s\n"
            "  rank 5 has not arrived: its last collective was number 8, all_reduce; step 5, backward; no "
            "change for 40 s\n");
}

TEST(StallTest, WhereAnybodyMovesThereIsNone) {
  EXPECT_FALSE(find_stall({rank(0, 9, 8, 31), rank(1, 8, 8, 29)}, seconds(30)));
}

TEST(StallTest, WhereNobodyWaitsThereIsNone) {
  EXPECT_FALSE(find_stall({rank(0, 8, 8, 300), rank(1, 8, 8, 300)}, seconds(30)));
}

TEST(StallTest, ProgramsThatDoNotTellAreLeftAlone) {
  EXPECT_FALSE(find_stall({RankView{}, RankView{}}, seconds(30)));
}

TEST(StallTest, ARankThatHasNotSaidAnythingIsMissing) {
  RankView silent;
  silent.rank = 1;
  const auto stall = find_stall({rank(0, 1, 0, 31), silent}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->missing, ElementsAre(1));
  EXPECT_THAT(stall->report, testing::HasSubstr("rank 1 has not reported anything yet"));
}

TEST(StallTest, ARankThatHasEndedIsMissing) {
  RankView gone = rank(1, 3, 3, 90);
  gone.ended = true;
  const auto stall = find_stall({rank(0, 4, 3, 31), gone}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_THAT(stall->report, testing::HasSubstr("rank 1 has ended"));
}

TEST(StallTest, AllHereMeansTheirDataDoesNotMove) {
  const auto stall = find_stall({rank(0, 4, 3, 31), rank(1, 4, 3, 31)}, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_TRUE(stall->missing.empty());
  EXPECT_THAT(stall->report, testing::HasSubstr("all ranks have arrived"));
}

TEST(StallTest, RanksThatWaitAtTheSamePlaceShareALineAndHostsAreNamed) {
  std::vector<RankView> ranks;
  for (int i = 0; i < 8; ++i) {
    ranks.push_back(i == 5 ? rank(i, 8, 8, 50) : rank(i, 9, 8, 31 + i));
    ranks.back().host = i < 4 ? "gpu01" : "gpu02";
  }
  ranks[7].progress.step = 6;
  const auto stall = find_stall(ranks, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->report,
            "no rank has moved for 30 s:\n"
            "  ranks 0-4,6 wait in all_reduce (their collective number 9; step 5, backward) for 31 to 37 s\n"
            "  rank 7 on gpu02 waits in all_reduce (its collective number 9; step 6, backward) for 38 s\n"
            "  rank 5 on gpu02 has not arrived: its last collective was number 8, all_reduce; step 5, "
            "backward; no change for 50 s\n");
}

TEST(StallTest, AReportOfALargeJobStaysShort) {
  std::vector<RankView> ranks{rank(0, 9, 8, 31)};
  for (int i = 1; i < 10'000; ++i) ranks.push_back(rank(i, 8, 8, 31));
  const auto stall = find_stall(ranks, seconds(30));
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->missing.size(), 9999u);
  EXPECT_LT(stall->report.size(), 8000u);
  EXPECT_THAT(stall->report, testing::HasSubstr("  and 9967 more\n"));
}

}  // namespace
}  // namespace lockstep::launcher
