#include "support/rank_processes.h"

#include <gtest/gtest.h>

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

void run_rank_processes(int size, const std::function<void(const RankMap& map)>& body) {
  if (const char* rank = std::getenv(kRank)) {
    body(rank_map(std::atoi(rank), size, std::getenv(kMeeting)));
    return;
  }
  const TemporaryFolder folder;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<Process> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(std::vector<std::string>{program, "--gtest_filter=" + name_of_running_test()},
                       Process::EnvironmentChanges{{kRank, std::to_string(rank)},
                                                   {kMeeting, (folder.path() / "meeting").string()}});
  }
  for (int rank = 0; rank < size; ++rank) {
    Process& process = ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(process.wait(kPatience), ExitStatus({0, 0})) << "rank " << rank << ":\n"
                                                           << process.output() << process.errors();
  }
}

}  // namespace lockstep::test
