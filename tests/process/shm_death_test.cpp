#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "support/process.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr auto kStart = seconds(60);  // to start a process under any load
constexpr auto kNotice = seconds(1);  // to notice that a peer has died

// A group of processes that meet in a file of their own.
class ShmDeath : public testing::Test {
 protected:
  ShmDeath() : folder_(std::filesystem::temp_directory_path() / "lockstep_shm_XXXXXX") {
    std::string name = folder_.string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp");
    }
    folder_ = name;
  }
  ~ShmDeath() override {
    ranks_.clear();
    std::filesystem::remove_all(folder_);
  }

  // Starts the ranks and waits until each has said the line.
  void start(int size, const std::string& scenario, milliseconds timeout,
             const std::string& until = "ready") {
    ranks_.clear();
    const auto store = folder_ / std::to_string(++num_groups_);
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Process>(
          std::vector<std::string>{program_path("test/shm_rank"), store, std::to_string(rank),
                                   std::to_string(size), std::to_string(timeout.count()), scenario}));
    }
    for (auto& rank : ranks_) {
      std::optional<std::string> line;
      do {
        line = rank->read_line(kStart);
      } while (line && *line != until);
      ASSERT_TRUE(line) << rank->errors();
    }
  }

  void expect_survivors_blame(int victim, const std::string& text) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (rank == victim) {
        continue;
      }
      const auto line = ranks_[rank]->read_line(kNotice);
      ASSERT_TRUE(line) << "rank " << rank << " says nothing; " << ranks_[rank]->errors();
      EXPECT_THAT(*line, AllOf(StartsWith("error " + std::to_string(victim) + " "), HasSubstr(text)));
      EXPECT_EQ(ranks_[rank]->wait(kStart), (ExitStatus{0, 0}));
    }
  }

  std::string died(int victim) const {
    return "rank " + std::to_string(victim) + " died (process " + std::to_string(ranks_[victim]->pid()) + ")";
  }

  std::filesystem::path folder_;
  int num_groups_ = 0;
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_F(ShmDeath, WhileTheOthersWaitForIt) {
  start(3, "wait", seconds(60));
  ranks_[2]->signal(SIGKILL);
  expect_survivors_blame(2, died(2));
}

TEST_F(ShmDeath, OfEachRankBetweenOperations) {
  for (int victim = 0; victim < 3; ++victim) {
    start(3, "between", seconds(60));
    ranks_[victim]->signal(SIGKILL);
    ASSERT_TRUE(ranks_[victim]->wait(kStart));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != victim) {
        ranks_[rank]->write_line("go");
      }
    }
    expect_survivors_blame(victim, died(victim));
  }
}

TEST_F(ShmDeath, OfEachRankInsideAnAllReduce) {
  for (int size : {2, 3}) {
    for (int victim = 0; victim < size; ++victim) {
      start(size, "loop", seconds(60), "looping");
      ranks_[victim]->signal(SIGKILL);
      expect_survivors_blame(victim, died(victim));
    }
  }
}

TEST_F(ShmDeath, AStoppedRankIsATimeout) {
  start(2, "loop", milliseconds(200), "looping");
  ranks_[1]->signal(SIGSTOP);
  expect_survivors_blame(1, "within 200 ms, rank 0 waits in all_reduce(sum)");
  ranks_[1]->signal(SIGKILL);
}

TEST_F(ShmDeath, AnEndInPeaceIsNotADeath) {
  start(2, "wait", seconds(60));
  ranks_[1]->write_line("go");
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->wait(kStart), (ExitStatus{0, 0}));
    EXPECT_THAT(rank->output(), Not(HasSubstr("error")));
  }
}

// Memory without a name in a file system cannot be left behind.
TEST_F(ShmDeath, LeavesNothingBecauseMemoryHasNoName) {
  start(2, "loop", seconds(60), "looping");
  for (auto& rank : ranks_) {
    rank->signal(SIGSTOP);
  }
  for (auto& rank : ranks_) {
    std::stringstream maps;
    maps << std::ifstream("/proc/" + std::to_string(rank->pid()) + "/maps").rdbuf();
    EXPECT_THAT(maps.str(), AllOf(HasSubstr("/memfd:lockstep (deleted)"), Not(HasSubstr("/dev/shm"))));
    rank->signal(SIGKILL);
    EXPECT_EQ(rank->wait(kStart), (ExitStatus{-1, SIGKILL}));
  }
}

}  // namespace
}  // namespace lockstep::test
