// A rank that dies is named by every survivor, soon, whatever the backend.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep {
namespace {

using test::Process;
using testing::HasSubstr;

// Far above what is expected, for a busy machine, and far below the two minutes
// that the programs' own timeout would take.
constexpr std::chrono::seconds kDeathBound{30};

struct Job {
  std::string backend;
  std::vector<std::string> hosts;
};

class Ranks {
 public:
  Ranks(const std::string& scenario, const Job& job) {
    std::string rendezvous = "tcp:0";
    for (size_t rank = 0; rank < job.hosts.size(); ++rank) {
      ranks_.emplace_back(std::vector<std::string>{
          test::program_path("test/comm_rank"), scenario, job.backend, std::to_string(rank),
          std::to_string(job.hosts.size()), rendezvous, job.hosts[rank]});
      if (rank == 0) {
        const auto line = ranks_[0].read_line(kDeathBound);
        rendezvous = "tcp:" + line.value_or("port ?").substr(5);
      }
    }
  }

  Process& operator[](size_t rank) { return ranks_[rank]; }
  size_t size() const { return ranks_.size(); }

  // Reads each rank's output up to the line.
  void wait_for_all(const std::string& wanted) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (;;) {
        const auto line = ranks_[rank].read_line(kDeathBound);
        ASSERT_TRUE(line.has_value())
            << "rank " << rank << ": " << ranks_[rank].output() << ranks_[rank].errors();
        if (*line == wanted) {
          break;
        }
      }
    }
  }

 private:
  std::vector<Process> ranks_;
};

class CommDeathTest : public testing::TestWithParam<Job> {};

TEST_P(CommDeathTest, EverySurvivorOfALoopNamesTheVictim) {
  for (size_t victim = 0; victim < GetParam().hosts.size(); ++victim) {
    Ranks ranks("loop", GetParam());
    ranks.wait_for_all("running");
    if (HasFatalFailure()) {
      return;
    }
    ranks[victim].signal(SIGKILL);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto status = ranks[rank].wait(kDeathBound);
      ASSERT_TRUE(status.has_value()) << "rank " << rank << " hangs, victim " << victim;
      if (rank != victim) {
        EXPECT_EQ(status->code, 3) << ranks[rank].errors();
        EXPECT_THAT(ranks[rank].output(), HasSubstr(fmt::format("failed {} [", victim))) << "rank " << rank;
        EXPECT_THAT(ranks[rank].output(), HasSubstr(fmt::format("rank {} died", victim))) << "rank " << rank;
      }
    }
  }
}

TEST_P(CommDeathTest, WhoWaitsForALivingRankIsFreedToo) {
  Ranks ranks("silence", GetParam());
  ranks.wait_for_all("running");
  if (HasFatalFailure()) {
    return;
  }
  ranks[2].signal(SIGKILL);
  const auto status = ranks[0].wait(kDeathBound);
  ASSERT_TRUE(status.has_value()) << "rank 0 waits for rank 1, which waits for nobody";
  EXPECT_EQ(status->code, 3) << ranks[0].errors();
  EXPECT_THAT(ranks[0].output(), HasSubstr("failed 2 [comm] rank 2 died"));
  ranks[1].close_input();
  EXPECT_EQ(ranks[1].wait(kDeathBound), (test::ExitStatus{0, 0})) << ranks[1].output() << ranks[1].errors();
}

TEST_P(CommDeathTest, ARankThatLeavesIsNotCalledDead) {
  Ranks ranks("leave", GetParam());
  EXPECT_EQ(ranks[0].wait(kDeathBound), (test::ExitStatus{0, 0})) << ranks[0].output() << ranks[0].errors();
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const auto status = ranks[rank].wait(kDeathBound);
    ASSERT_TRUE(status.has_value()) << rank;
    EXPECT_EQ(status->code, 3) << ranks[rank].errors();
    EXPECT_THAT(ranks[rank].output(), HasSubstr("left")) << rank;
    EXPECT_THAT(ranks[rank].output(), testing::Not(HasSubstr("died"))) << rank;
  }
}

TEST(CommDeathInSubgroupTest, BothRanksOfTheVictimAreNamed) {
  Ranks ranks("subgroup", {"gloo", {"a", "a", "a"}});
  ranks.wait_for_all("running");
  if (testing::Test::HasFatalFailure()) {
    return;
  }
  ranks[2].signal(SIGKILL);
  const auto status = ranks[0].wait(kDeathBound);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 3) << ranks[0].errors();
  EXPECT_THAT(ranks[0].output(), HasSubstr("failed 0 [comm] rank 2, rank 0 of this group, died during"));
  ranks[1].close_input();
  EXPECT_EQ(ranks[1].wait(kDeathBound), (test::ExitStatus{0, 0})) << ranks[1].output() << ranks[1].errors();
}

INSTANTIATE_TEST_SUITE_P(Backends, CommDeathTest,
                         testing::Values(Job{"gloo", {"a", "a", "a"}}, Job{"auto", {"a", "a", "b"}}),
                         [](const auto& info) { return info.index == 0 ? "gloo" : "hierarchical"; });

}  // namespace
}  // namespace lockstep
