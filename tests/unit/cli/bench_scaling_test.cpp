#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
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

report::ScalingRow row_on_gpus(int ranks) {
  report::ScalingRow row;
  row.ranks = ranks;
  row.folder = "/study/ranks";
  row.one_gpu_each = true;
  return row;
}

scaling::Study study_on_gpus() {
  return {.nodes = {},
          .ranks = {},
          .cpus_per_rank = {},
          .gpus = true,
          .job = {},
          .command = {"./train"},
          .output = {}};
}

TEST(ScalingStudyTest, ARunGetsTheFirstOfTheGpusThatThisProcessSees) {
  const scaling::Machine machine{.cpus = {3, 1, 2}, .num_gpus = 3};
  const auto gpus = [&](int ranks, base::Environment environment) {
    return process_of(study_on_gpus(), row_on_gpus(ranks), machine, std::move(environment), 1)
        .environment.get("CUDA_VISIBLE_DEVICES");
  };
  EXPECT_EQ(gpus(2, {}), "0,1");
  EXPECT_EQ(gpus(2, {{"CUDA_VISIBLE_DEVICES", "5,GPU-3fa8,7"}}), "5,GPU-3fa8");
  EXPECT_EQ(gpus(1, {{"CUDA_VISIBLE_DEVICES", "7"}}), "7");
  report::ScalingRow on_cpus = row_on_gpus(2);
  on_cpus.one_gpu_each = false;
  const base::ProcessOptions options =
      process_of(study_on_gpus(), on_cpus, machine, {{"GPUS_PER_NODE", "3"}}, 1);
  EXPECT_EQ(options.environment.get("CUDA_VISIBLE_DEVICES"), std::nullopt);
  EXPECT_EQ(options.environment.get("GPUS_PER_NODE"), "3");
  EXPECT_EQ(options.environment.get("LOCKSTEP_LOG_FOLDER"), "/study/ranks");
  EXPECT_THAT(options.cpus, ElementsAre(1, 3)) << "the first two of the machine";
}

// GPUS_PER_NODE of a batch script counts the GPUs that the run does not see.
TEST(ScalingStudyTest, ARunOnSomeOfTheGpusDoesNotSeeTheirNumberOfTheBatchScript) {
  const base::ProcessOptions options =
      process_of(study_on_gpus(), row_on_gpus(1), {.cpus = {0}, .num_gpus = 3}, {{"GPUS_PER_NODE", "3"}}, 1);
  EXPECT_EQ(options.environment.get("GPUS_PER_NODE"), std::nullopt);
}

TEST(ScalingStudyTest, RunsThatNeedMoreGpusOrCpusThanThereAreAreLeftOut) {
  const test::TemporaryFolder folder;
  scaling::Study study{.nodes = {},
                       .ranks = {2, 4},
                       .cpus_per_rank = {1},
                       .gpus = true,
                       .job = {},
                       .command = {"./train"},
                       .output = folder.path() / "study"};
  std::optional<int> stopped_by;
  const auto failures = [&](int num_gpus) {
    study.output = folder.path() / std::to_string(num_gpus);
    std::vector<std::string> result;
    for (const report::ScalingRow& row : run_study(
             study, {.cpus = {0}, .num_gpus = num_gpus}, [](const auto&) {}, &stopped_by)) {
      EXPECT_FALSE(row.was_run);
      result.push_back(row.failure);
    }
    return result;
  };
  EXPECT_THAT(failures(1), ElementsAre("left out: it needs 2 GPUs, and 1 is visible",
                                       "left out: it needs 4 GPUs, and 1 is visible"));
  EXPECT_THAT(failures(2), ElementsAre("left out: it needs 2 CPUs, and there are 1 (--oversubscribe runs it)",
                                       "left out: it needs 4 GPUs, and 2 are visible"));
}

}  // namespace
}  // namespace lockstep::cli
