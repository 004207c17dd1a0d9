#include "support/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace lockstep::test {
namespace {

TEST(RankThreads, RunsEveryRankOverOneStore) {
  std::atomic<int> ranks_seen{0};
  run_ranks(4, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    store->add("arrived", 1);
    store->set("rank" + std::to_string(rank), "here");
    store->wait({"rank0", "rank1", "rank2", "rank3"});
    ranks_seen |= 1 << rank;
  });
  EXPECT_EQ(ranks_seen, 0b1111);
}

TEST(RankThreads, RethrowsTheFirstException) {
  const auto fail = [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    if (rank == 1) {
      throw std::invalid_argument("the cause");
    }
  };
  EXPECT_THROW(run_ranks(2, fail), std::invalid_argument);
  const auto errors = try_ranks(2, fail);
  EXPECT_EQ(errors[0], nullptr);
  EXPECT_NE(errors[1], nullptr);
}

}  // namespace
}  // namespace lockstep::test
