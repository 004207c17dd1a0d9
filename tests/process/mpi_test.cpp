// The backend mpi under a real mpirun.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/process.h"

namespace lockstep {
namespace {

using test::Process;
using testing::HasSubstr;

constexpr std::chrono::seconds kMpiBound{120};

// The plugin lies in build/lib, the programs in build/bin/test.
std::string plugin_folder() {
  return std::filesystem::path(test::program_path("test/comm_operations")).parent_path() / "../../lib";
}

std::string fresh_file(const char* name) {
  const auto path = std::filesystem::temp_directory_path() / (std::string(name) + std::to_string(getpid()));
  std::filesystem::remove(path);
  return path;
}

class MpiTest : public testing::TestWithParam<int> {};

TEST_P(MpiTest, EveryOperationUnderMpirun) {
  const std::string meeting = fresh_file("lockstep_mpi_meeting_");
  Process job({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(GetParam()),
               test::program_path("test/comm_operations"), "mpi", meeting},
              {{"LOCKSTEP_PLUGIN_DIR", plugin_folder()}, test::kExcuseMpiLeaks});
  const auto status = job.wait(kMpiBound);
  std::filesystem::remove(meeting);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 0) << job.output() << job.errors();
  size_t ranks = 0;
  for (size_t at = 0; (at = job.output().find("ok mpi\n", at)) != std::string::npos; ++at) {
    ++ranks;
  }
  EXPECT_EQ(ranks, static_cast<size_t>(GetParam())) << job.output();
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiTest, testing::Values(2, 3));

// Communicators that the program has split itself, in the reverse order of MPI's world.
TEST(MpiWorldTest, RanksOfACommunicatorTrain) {
  Process job(
      {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "5", test::program_path("test/mpi_world")},
      {test::kExcuseMpiLeaks});
  const auto status = job.wait(kMpiBound);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 0) << job.output() << job.errors();
  for (const char* line :
       {"ok 0 of 3 shm", "ok 1 of 3 shm", "ok 2 of 3 shm", "ok 0 of 2 shm", "ok 1 of 2 shm"}) {
    EXPECT_THAT(job.output(), HasSubstr(line));
  }
}

TEST(MpiWorldTest, TheBackendMpiLeavesMpiToTheProgram) {
  Process job({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
               test::program_path("test/mpi_world"), "mpi"},
              {{"LOCKSTEP_PLUGIN_DIR", plugin_folder()}, test::kExcuseMpiLeaks});
  const auto status = job.wait(kMpiBound);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 0) << job.output() << job.errors();
  EXPECT_THAT(job.output(), HasSubstr("ok 1 of 2 mpi"));
}

// A solver with a model of its own, and with one that Python exported.
TEST(MpiWorldTest, ASolverTrainsASurrogate) {
  const std::string exported =
      std::string(std::getenv("LOCKSTEP_SOURCE_DIR")) + "/tests/unit/exported/golden/surrogate.pt2";
  for (const std::string& model : {std::string(), exported}) {
    std::vector<std::string> command = {"mpirun", "--allow-run-as-root",          "--oversubscribe", "-n",
                                        "2",      test::program_path("surrogate")};
    if (!model.empty()) command.push_back(model);
    Process job(command, {test::kExcuseMpiLeaks});
    const auto status = job.wait(kMpiBound);
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->code, 0) << job.output() << job.errors();
    const std::string output = job.output();
    const size_t found = output.find("relative error ");
    ASSERT_NE(found, std::string::npos) << output;
    EXPECT_LT(std::stod(output.substr(found + 15)), 0.1) << output;
    EXPECT_THAT(output, HasSubstr("after 600 steps on 2 rank(s)"));
  }
}

// Two ranks that know of each other, but whose MPI does not.
TEST(MpiStartTest, WithoutMpirunTheErrorSaysSo) {
  const std::string meeting = fresh_file("lockstep_mpi_alone_");
  std::vector<Process> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.emplace_back(
        std::vector<std::string>{test::program_path("test/comm_rank"), "loop", "mpi", rank, "2",
                                 "file:" + meeting},
        Process::EnvironmentChanges{{"LOCKSTEP_PLUGIN_DIR", plugin_folder()}, test::kExcuseMpiLeaks});
  }
  for (Process& rank : ranks) {
    const auto status = rank.wait(kMpiBound);
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(status->code, 2) << rank.output() << rank.errors();
    EXPECT_THAT(rank.output(), HasSubstr("[mpi] MPI's world is not this job's, start the job with mpirun"));
    EXPECT_THAT(rank.output(), HasSubstr("MPI says rank 0 of 1"));
  }
  std::filesystem::remove(meeting);
}

TEST(PluginTest, OneThatIsNotThereIsLookedForEverywhere) {
  Process rank({test::program_path("test/comm_rank"), "loop", "mpi", "0", "1", "file:unused"},
               {{"LOCKSTEP_PLUGIN_DIR", "/nonexistent"}});
  const auto status = rank.wait(kMpiBound);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 2) << rank.output() << rank.errors();
  EXPECT_THAT(rank.output(), HasSubstr("plugin liblockstep_mpi.so does not load"));
  EXPECT_THAT(rank.output(), HasSubstr("/nonexistent/liblockstep_mpi.so"));
}

}  // namespace
}  // namespace lockstep
