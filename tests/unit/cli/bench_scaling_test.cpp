#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "cli/commands.h"
#include "cli/scaling/study.h"
#include "support/temporary_folder.h"

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of_words(std::vector<const char*> words) {
  words.insert(words.begin(), "lockstep bench scaling");
  try {
    run_bench_scaling(static_cast<int>(words.size()), words.data());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(BenchScalingCommandTest, ErrorsSayWhatToDo) {
  EXPECT_THAT(error_of_words({"--bogus", "--", "x"}),
              HasSubstr("not expected: --bogus; lockstep bench scaling --help"));
  EXPECT_THAT(error_of_words({"--ranks", "1,zwei", "--", "x"}), HasSubstr("--ranks"));
  EXPECT_THAT(error_of_words({"--ranks", "0", "--", "x"}), HasSubstr("--ranks must be at least 1: 0"));
  EXPECT_THAT(error_of_words({"--ranks", "1", "2", "--", "x"}),
              HasSubstr("the program is a number: '2'. Write --ranks and --cpus-per-rank with commas"));
  EXPECT_THAT(error_of_words({"--help"}), HasSubstr("--cpus-per-rank"));
  EXPECT_THAT(error_of_words({"--partition", "gpu", "--", "x"}),
              HasSubstr("--partition is for Slurm jobs: add --nodes, or leave out --partition"));
  EXPECT_THAT(error_of_words({"--nodes", "0", "--", "x"}), HasSubstr("--nodes must be at least 1: 0"));
}

TEST(BenchScalingCommandTest, AnOlderStudyIsNotMixedWithANewOne) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "ranks-2-cpus-1");
  EXPECT_THAT(error_of_words({"--output", folder.path().c_str(), "--", "x"}),
              HasSubstr("a study is there already, choose another --output or remove it: '"));
}

// Four CPUs, two hardware threads a core.
TEST(ScalingStudyTest, CoresComeBeforeHardwareThreads) {
  const test::TemporaryFolder sysfs;
  const char* siblings[] = {"0-1", "0-1", "2-3", "2-3"};
  for (int cpu = 0; cpu < 4; ++cpu) {
    const auto topology = sysfs.path() / "devices/system/cpu" / ("cpu" + std::to_string(cpu)) / "topology";
    std::filesystem::create_directories(topology);
    std::ofstream(topology / "thread_siblings_list") << siblings[cpu] << "\n";
    std::ofstream(topology / "core_cpus_list") << siblings[cpu] << "\n";
  }
  EXPECT_THAT(scaling::spread_over_cores({0, 1, 2, 3}, sysfs.path()), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(scaling::spread_over_cores({1, 3}, "/nowhere"), ElementsAre(1, 3));
}

}  // namespace
}  // namespace lockstep::cli
