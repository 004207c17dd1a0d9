// A machine with GPUs that the program cannot use: the program says so once, and what to do. NVIDIA's are
// played by a library in NVML's place, and the program has no CUDA library; AMD's by files in sysfs's place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/amd_machine.h"
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
      HasSubstr(std::string("this build has no CUDA library (liblockstep_cuda.so); to get it: ") + kAdvice));
}

TEST_F(UnusedGpuTest, ALibraryThatIsThereIsNotBuiltAgain) {
  std::ofstream(folder_.path() / "liblockstep_cuda.so") << "not a library";
  const Finished sine = run({});
  EXPECT_EQ(sine.code, 0) << sine.errors;
  EXPECT_THAT(sine.errors, HasSubstr("but the ranks use the CPU: "));
  EXPECT_THAT(sine.errors, Not(HasSubstr("this build has no CUDA library")));
}

constexpr char kTwoAmdGpus[] =
    "2 AMD GPUs are visible (AMD Instinct MI250X, gfx90a), but this build has no ROCm (its LibTorch and its "
    "GPU "
    "library are for CUDA)";

class AmdGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    make_amd_machine(folder_.path() / "sys", 2);
    // Found before those of the system, and no libraries: this machine has nothing of NVIDIA.
    for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"})
      std::ofstream(folder_.path() / name) << "no library";
  }

  // In a mount namespace of its own, where /sys/class is another folder.
  Finished run(const std::vector<std::string>& command, Process::EnvironmentChanges changes = {}) const {
    std::vector<std::string> arguments{"unshare", "--mount"};
    if (::geteuid() != 0) arguments.emplace_back("--map-root-user");
    const std::vector<std::string> mount{"sh", "-c",
                                         "mount --bind \"$0\" /sys/class && "
                                         "{ [ ! -d /proc/driver/nvidia/gpus ] || mount -t tmpfs none "
                                         "/proc/driver/nvidia/gpus; } && exec \"$@\"",
                                         folder_.path() / "sys/class"};
    arguments.insert(arguments.end(), mount.begin(), mount.end());
    arguments.insert(arguments.end(), command.begin(), command.end());
    const char* before = std::getenv("LD_LIBRARY_PATH");
    changes["LD_LIBRARY_PATH"] =
        folder_.path().string() + (before != nullptr ? ":" + std::string(before) : "");
    changes["LOCKSTEP_ROOT_FOLDER"] = (folder_.path() / "runs").string();
    changes.insert(kExcuseMpiLeaks);  // the doctor tries all backends
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
      changes.try_emplace(name, std::nullopt);
    Process process(std::move(arguments), changes);
    return finish(process, seconds(120));
  }
  Finished run_sine(std::vector<std::string> flags, Process::EnvironmentChanges changes = {}) const {
    flags.insert(flags.begin(), {program_path("sine"), "--max_iter", "1"});
    return run(flags, std::move(changes));
  }

  TemporaryFolder folder_;
};

TEST_F(AmdGpuTest, RankZeroNamesThemOnce) {
  const Finished sine = run_sine({"--nprocs", "2"});
  EXPECT_EQ(sine.code, 0) << sine.errors;
  EXPECT_THAT(sine.errors, HasSubstr(std::string(kTwoAmdGpus) + ", so the ranks use the CPU."));
  const size_t first = sine.errors.find("AMD GPUs");
  EXPECT_EQ(sine.errors.find("AMD GPUs", first + 1), std::string::npos) << "once: " << sine.errors;
}

TEST_F(AmdGpuTest, HiddenGpusAndTheChoiceOfTheCpuAreSilent) {
  const Finished hidden = run_sine({}, {{"ROCR_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(hidden.code, 0) << hidden.errors;
  EXPECT_EQ(hidden.errors, "");
  EXPECT_EQ(run_sine({"--compute_setup", "cpu"}).errors, "");
}

TEST_F(AmdGpuTest, WhoAsksForGpusOrNcclHearsWhatIsMissing) {
  const Finished gpu = run_sine({"--compute_setup", "gpu"});
  EXPECT_EQ(gpu.code, kExitUsage);
  EXPECT_THAT(gpu.errors, HasSubstr("[launch] compute_setup is gpu, and " + std::string(kTwoAmdGpus) +
                                    ": set compute_setup to cpu"));
  const Finished nccl = run_sine({"--nprocs", "2", "--backend", "nccl", "--compute_setup", "cpu"});
  EXPECT_EQ(nccl.code, kExitUsage);
  EXPECT_THAT(nccl.errors, HasSubstr("backend nccl needs a CUDA device"));
  EXPECT_THAT(nccl.errors, HasSubstr(kTwoAmdGpus));
  EXPECT_THAT(nccl.errors, Not(HasSubstr(kAdvice)));
}

TEST_F(AmdGpuTest, TheLauncherCountsThem) {
  const std::vector<std::string> command{
      program_path("lockstep"), "run", "--quiet", "--no-prefix", "-n", "gpu", "printenv", "WORLD_SIZE"};
  EXPECT_EQ(run(command).output, "2\n2\n");
  EXPECT_EQ(run(command, {{"ROCR_VISIBLE_DEVICES", "1"}}).output, "1\n");
  const Finished broken = run(command, {{"ROCR_VISIBLE_DEVICES", "one"}});
  EXPECT_EQ(broken.code, kExitUsage);
  EXPECT_THAT(broken.errors, HasSubstr("ROCR_VISIBLE_DEVICES holds 'one'"));
}

TEST_F(AmdGpuTest, TheDoctorListsThem) {
  const Finished doctor = run({program_path("lockstep"), "doctor", "--json"}, {{"HIP_VISIBLE_DEVICES", "1"}});
  ASSERT_EQ(doctor.code, 0) << doctor.errors;
  const nlohmann::json gpus = nlohmann::json::parse(doctor.output).at("ranks").at(0).at("machine").at("gpus");
  EXPECT_EQ(gpus.at("amd:0"), "AMD Instinct MI250X, gfx90a GPU-8000000000000002");
  EXPECT_THAT(gpus.at("amd").get<std::string>(), HasSubstr("not used: this build has no ROCm"));
  EXPECT_FALSE(gpus.contains("amd:1"));
}

}  // namespace
}  // namespace lockstep::test
