#include "launcher/agent/worker_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WorkerCommandTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::string refusal(CommandKind kind, const std::vector<std::string>& command) {
    try {
      resolve_command(kind, command, environment_);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  const std::string folder_ = testing::TempDir() + "lockstep_worker_command_test";
  base::Environment environment_{{"PATH", folder_}};
};

TEST_F(WorkerCommandTest, AProgramIsExecuted) {
  const std::string program = file("prog", 0755);
  const WorkerCommand command = resolve_command(CommandKind::kDetect, {program, "-x", ""}, environment_);
  EXPECT_EQ(command.program, program);
  EXPECT_THAT(command.arguments, ElementsAre(program, "-x", ""));
}

TEST_F(WorkerCommandTest, ANameIsLookedForInPath) {
  const std::string program = file("prog", 0755);
  EXPECT_EQ(resolve_command(CommandKind::kDetect, {"prog"}, environment_).program, program);
}

TEST_F(WorkerCommandTest, AScriptRunsUnderPython) {
  const std::string python = file("python3", 0755);
  const std::string script = file("train.py", 0644);
  EXPECT_THAT(resolve_command(CommandKind::kDetect, {script, "1"}, environment_).arguments,
              ElementsAre(python, "-u", script, "1"));
  EXPECT_THAT(resolve_command(CommandKind::kModule, {"pkg.train"}, environment_).arguments,
              ElementsAre(python, "-u", "-m", "pkg.train"));
  const std::string bare = file("train", 0644);
  EXPECT_THAT(resolve_command(CommandKind::kScript, {bare}, environment_).arguments,
              ElementsAre(python, "-u", bare));
}

TEST_F(WorkerCommandTest, PythonExecWins) {
  file("python3", 0755);
  environment_.set("PYTHON_EXEC", file("mypython", 0755));
  EXPECT_EQ(resolve_command(CommandKind::kModule, {"x"}, environment_).program, folder_ + "/mypython");
}

TEST_F(WorkerCommandTest, RefusalsSayWhatToDo) {
  EXPECT_THAT(refusal(CommandKind::kDetect, {}), HasSubstr("which program?"));
  EXPECT_THAT(refusal(CommandKind::kDetect, {"nowhere"}),
              HasSubstr("not in PATH and not in this folder: 'nowhere'"));
  EXPECT_THAT(refusal(CommandKind::kDetect, {"/nowhere/prog"}), HasSubstr("does not exist: '/nowhere/prog'"));
  EXPECT_THAT(refusal(CommandKind::kDetect, {folder_ + "/."}), HasSubstr("is a folder"));
  EXPECT_THAT(refusal(CommandKind::kDetect, {file("plain", 0644)}), HasSubstr("may not be executed"));
  EXPECT_THAT(refusal(CommandKind::kDetect, {"/nowhere/train.py"}), HasSubstr("the script does not exist"));
  EXPECT_THAT(refusal(CommandKind::kModule, {"x"}), HasSubstr("no python3 in PATH"));
}

TEST(VirtualLocalRankTest, EveryWorkerSeesOneGpuInTheVariableThatIsRead) {
  RunOptions options;
  options.virtual_local_rank = true;
  Generation generation;
  generation.nodes.resize(1);
  generation.nodes[0].local_world_size = 2;
  const auto second = [&](const base::Environment& ours) {
    return worker_environment(ours, options, generation, 1, "");
  };
  const base::Environment cuda = second({{"CUDA_VISIBLE_DEVICES", "4,7"}, {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(cuda.get("LOCAL_RANK"), "0");
  EXPECT_EQ(cuda.get("CUDA_VISIBLE_DEVICES"), "7");
  EXPECT_EQ(cuda.get("HIP_VISIBLE_DEVICES"), std::nullopt);
  const base::Environment counted = second({{"GPUS_PER_NODE", "2"}, {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(counted.get("GPUS_PER_NODE"), std::nullopt) << "the worker sees one";
  const base::Environment hip = second({{"HIP_VISIBLE_DEVICES", "4,7"}, {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(hip.get("HIP_VISIBLE_DEVICES"), "7");
  EXPECT_THAT(
      [&] {
        second({{"HIP_VISIBLE_DEVICES", "4"}});
      },
      testing::ThrowsMessage<ConfigError>(HasSubstr("local rank 1 has no GPU in HIP_VISIBLE_DEVICES: '4'")));
}

}  // namespace
}  // namespace lockstep::launcher
