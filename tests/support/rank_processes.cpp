#include "support/rank_processes.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

// Of a rank: which one it is, and the file where ranks meet.
constexpr char kRank[] = "LOCKSTEP_TEST_RANK";
constexpr char kMeeting[] = "LOCKSTEP_TEST_MEETING";
constexpr std::chrono::minutes kPatience(3);

RankMap rank_map(int rank, int size, const std::string& meeting) {
  RankMap map;
  map.launcher = Launcher::kExplicit;
  map.rank = map.local_rank = rank;
  map.world_size = map.local_world_size = size;
  map.host = "localhost";
  map.rendezvous.kind = Rendezvous::Kind::kFile;
  map.rendezvous.path = meeting;
  return map;
}

std::string name_of_running_test() {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test.test_suite_name()) + "." + test.name();
}

}  // namespace

void run_rank_processes(const RankProcesses& job, const std::function<void(const RankMap& map)>& body) {
  if (const char* rank = std::getenv(kRank)) {
    body(rank_map(std::atoi(rank), job.size, std::getenv(kMeeting)));
    return;
  }
  const TemporaryFolder folder;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<Process> ranks;
  for (int rank = 0; rank < job.size; ++rank) {
    Process::EnvironmentChanges environment = job.environment;
    environment[kRank] = std::to_string(rank);
    environment[kMeeting] = (folder.path() / "meeting").string();
    ranks.emplace_back(std::vector<std::string>{program, "--gtest_filter=" + name_of_running_test()},
                       environment);
  }
  const auto expect_end = [&](int rank, ExitStatus expected) {
    Process& process = ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(process.wait(kPatience), expected) << "rank " << rank << ":\n"
                                                 << process.output() << process.errors();
  };
  for (int rank = 0; rank < job.size; ++rank) {
    const auto end = job.ends.find(rank);
    if (rank != job.stalled) expect_end(rank, end != job.ends.end() ? end->second : ExitStatus{0, 0});
  }
  if (!job.stalled) return;
  ranks[static_cast<size_t>(*job.stalled)].signal(SIGKILL);
  expect_end(*job.stalled, {-1, SIGKILL});
}

void run_rank_processes(int size, const std::function<void(const RankMap& map)>& body) {
  run_rank_processes({.size = size}, body);
}

}  // namespace lockstep::test
