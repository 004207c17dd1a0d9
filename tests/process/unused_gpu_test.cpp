// A machine with GPUs, played by a library in NVML's place, and a program without the CUDA
// library: the program says so once, and what to do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

constexpr char kAdvice[] = "script/setup --cuda && script/build";

class UnusedGpuTest : public testing::Test {
 protected:
  // A copy: beside the program itself the build may have put the CUDA library.
  void SetUp() override { std::filesystem::copy_file(program_path("sine"), program()); }

  std::filesystem::path program() const { return folder_.path() / "sine"; }

  Finished run(std::vector<std::string> arguments, Process::EnvironmentChanges changes = {}) const {
    const std::filesystem::path fake =
        std::filesystem::path(program_path("test/gpu_monitor")).parent_path() / "nvml";
    const char* before = std::getenv("LD_LIBRARY_PATH");
    changes["LD_LIBRARY_PATH"] = fake.string() + (before != nullptr ? ":" + std::string(before) : "");
    changes["LOCKSTEP_ROOT_FOLDER"] = (folder_.path() / "runs").string();
    changes["LOCKSTEP_PLUGIN_DIR"] = std::nullopt;
    changes.try_emplace("CUDA_VISIBLE_DEVICES", std::nullopt);
    arguments.insert(arguments.begin(), {program().string(), "--max_iter", "1"});
    Process process(std::move(arguments), changes);
    return finish(process, seconds(60));
  }

  TemporaryFolder folder_;
};

TEST_F(UnusedGpuTest, RankZeroNamesTheGpusAndTheCommand) {
  const Finished sine = run({"--nprocs", "2"});
  EXPECT_EQ(sine.code, 0) << sine.errors;
  EXPECT_THAT(sine.errors,
              HasSubstr("3 NVIDIA GPUs are visible (NVIDIA Test 0), but this build has no CUDA library "
                        "(liblockstep_cuda.so), so the ranks use the CPU. To use GPUs: " +
                        std::string(kAdvice)));
  const size_t first = sine.errors.find(kAdvice);
  EXPECT_EQ(sine.errors.find(kAdvice, first + 1), std::string::npos) << "once: " << sine.errors;
}

TEST_F(UnusedGpuTest, OnlyWhatThisProcessMaySeeCounts) {
  EXPECT_THAT(run({}, {{"CUDA_VISIBLE_DEVICES", "1"}}).errors, HasSubstr("an NVIDIA GPU is visible"));
  const Finished hidden = run({}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(hidden.code, 0) << hidden.errors;
  EXPECT_EQ(hidden.errors, "");
}

TEST_F(UnusedGpuTest, WhoAsksForTheCpuHearsNothing) {
  const Finished sine = run({"--compute_setup", "cpu"});
  EXPECT_EQ(sine.code, 0) << sine.errors;
  EXPECT_EQ(sine.errors, "");
}

TEST_F(UnusedGpuTest, NcclSaysTheSame) {
  const Finished sine = run({"--nprocs", "2", "--backend", "nccl", "--compute_setup", "cpu"});
  EXPECT_EQ(sine.code, kExitUsage);
  EXPECT_THAT(sine.errors, HasSubstr("backend nccl needs a CUDA device"));
  EXPECT_THAT(
      sine.errors,
      HasSubstr(std::string("this build has no CUDA library (liblockstep_cuda.so), build it: ") + kAdvice));
}

TEST_F(UnusedGpuTest, ALibraryThatIsThereIsNotBuiltAgain) {
  std::ofstream(folder_.path() / "liblockstep_cuda.so") << "not a library";
  const Finished sine = run({});
  EXPECT_EQ(sine.code, 0) << sine.errors;
  EXPECT_THAT(sine.errors, HasSubstr("but the ranks use the CPU: "));
  EXPECT_THAT(sine.errors, Not(HasSubstr("this build has no CUDA library")));
}

}  // namespace
}  // namespace lockstep::test
