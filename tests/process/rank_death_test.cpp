#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "base/unique_fd.h"
#include "support/process.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr int kRanks = 3;

// Folders are those of other tests.
std::set<std::string> shared_memory_segments() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.is_regular_file()) names.insert(entry.path().filename());
  }
  return names;
}

// The pids of lines "rank R pid P".
std::vector<pid_t> pids_of(const std::string& output) {
  std::vector<pid_t> pids;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    int rank = 0;
    pid_t pid = 0;
    if (std::sscanf(line.c_str(), "rank %d pid %d", &rank, &pid) == 2) pids.push_back(pid);
  }
  return pids;
}

// Whether the process is gone, or goes within the time. It need not be our child.
bool ends_within(pid_t pid, std::chrono::milliseconds limit) {
  const base::UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno == ESRCH;
  pollfd ended{fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, static_cast<int>(limit.count())) == 1;
}

class RankDeathTest : public testing::TestWithParam<std::tuple<std::string, int, std::string>> {};

// One rank of three is killed at an exact place. The others must name it, all must
// end, and nothing may be left.
TEST_P(RankDeathTest, SurvivorsNameTheDeadRankAndAllEnd) {
  const auto& [backend, victim, phase] = GetParam();
  const std::set<std::string> segments_before = shared_memory_segments();
  Process job({program_path("test/dying_rank"), backend, std::to_string(victim), phase});
  const auto status = job.wait(seconds(30));
  ASSERT_TRUE(status) << job.output() << job.errors();
  EXPECT_EQ(status->code, 128 + SIGKILL) << job.errors();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    EXPECT_THAT(job.output(),
                HasSubstr("rank " + std::to_string(rank) + " lost " + std::to_string(victim) + "\n"))
        << job.errors();
  }
  EXPECT_THAT(job.errors(), testing::ContainsRegex("\\[launch\\] rank " + std::to_string(victim) +
                                                   " \\(.*\\) failed first: signal 9 \\(SIGKILL\\)"));
  const std::vector<pid_t> pids = pids_of(job.output());
  EXPECT_EQ(pids.size(), static_cast<size_t>(kRanks));
  for (const pid_t pid : pids) EXPECT_TRUE(ends_within(pid, seconds(5))) << pid;
  EXPECT_EQ(shared_memory_segments(), segments_before);
}

INSTANTIATE_TEST_SUITE_P(Phases, RankDeathTest,
                         testing::Combine(testing::Values("shm", "gloo"), testing::Values(0, 1, 2),
                                          testing::Values("forward", "backward", "collective", "between")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "Rank" + std::to_string(std::get<1>(info.param)) +
                                  std::get<2>(info.param);
                         });

TEST(LaunchTest, AllRanksEndWellWhenNobodyDies) {
  Process job({program_path("test/dying_rank"), "auto", "0", "never"});
  const auto status = job.wait(seconds(30));
  ASSERT_TRUE(status) << job.errors();
  EXPECT_EQ(status->code, 0) << job.errors();
  EXPECT_EQ(job.errors(), "");
}

// The process that started the ranks is killed: they must not outlive it.
TEST(LaunchTest, NoOrphanSurvivesTheSpawningProcess) {
  Process job({program_path("test/dying_rank"), "shm", "0", "never"}, {{"LOCKSTEP_TEST_HOLD", "1"}});
  std::vector<pid_t> pids;
  while (pids.size() < kRanks) {
    const auto line = job.read_line(seconds(20));
    ASSERT_TRUE(line) << job.errors();
    pids = pids_of(job.output());
  }
  job.signal(SIGKILL);
  // The ranks hold the pipe: its end means that they are gone.
  while (job.read_line(seconds(10))) {
  }
  ASSERT_TRUE(job.wait(seconds(10)));
  for (const pid_t pid : pids) EXPECT_TRUE(ends_within(pid, seconds(5))) << pid;
}

TEST(LaunchTest, PassesTerminationOnAndReturnsIt) {
  Process job({program_path("test/dying_rank"), "shm", "0", "never"}, {{"LOCKSTEP_TEST_HOLD", "1"}});
  while (pids_of(job.output()).size() < kRanks) ASSERT_TRUE(job.read_line(seconds(20))) << job.errors();
  job.signal(SIGTERM);
  const auto status = job.wait(seconds(20));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 128 + SIGTERM);
}

}  // namespace
}  // namespace lockstep::test
