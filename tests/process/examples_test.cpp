#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/process.h"
#include "track/csv_line.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::ContainsRegex;
using testing::HasSubstr;

// Runs programs in an empty folder, as a new user would.
class ExamplesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-examples-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Process run(std::vector<std::string> arguments, Process::EnvironmentChanges changes = {}) {
    changes["LOCKSTEP_ROOT_FOLDER"] = (folder_ / "runs").string();
    changes["OMP_NUM_THREADS"] = std::nullopt;
    Process process(std::move(arguments), changes);
    const auto status = process.wait(seconds(60));
    EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
    if (status) code_ = status->code;
    return process;
  }

  std::filesystem::path run_folder_of(const std::string& output) {
    std::smatch match;
    if (!std::regex_search(output, match, std::regex("Run folder: (.*)\n"))) return {};
    return match[1].str();
  }

  std::filesystem::path folder_;
  int code_ = -1;
};

void expect_sine_output(const std::string& output, int ranks) {
  EXPECT_THAT(output,
              ContainsRegex("P  0\\|cpu    \\| Iteration       5\\| Train_Loss: [0-9]+\\.[0-9]{7} -\n"));
  EXPECT_THAT(output,
              ContainsRegex("P  0\\|cpu    \\| Iteration      50\\| Train_Loss: [0-9]+\\.[0-9]{7} -\n"));
  EXPECT_THAT(output, testing::Not(HasSubstr("P  1|"))) << "rank 0 alone prints";
  EXPECT_THAT(output, HasSubstr("Trained 50 epochs"));
  EXPECT_THAT(output, HasSubstr("on " + std::to_string(ranks) + " rank"));
}

TEST_F(ExamplesTest, SineOnOneProcess) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{}, std::vector<std::string>{"--nprocs", "1"}}) {
    std::vector<std::string> command = {program_path("sine"), "--compute_setup", "cpu"};
    command.insert(command.end(), words.begin(), words.end());
    const Process sine = run(command);
    EXPECT_EQ(code_, 0) << sine.errors();
    expect_sine_output(sine.output(), 1);
    EXPECT_EQ(sine.errors(), "");
  }
}

// Without a launcher: each process says which rank it is, and a file of a shared folder brings them together.
TEST_F(ExamplesTest, RanksStartedByHandMeetAtAFile) {
  const std::string file = "file://" + (folder_ / "some_file").string();
  const auto command = [&](int rank) {
    return std::vector<std::string>{program_path("ranks"), "--compute_setup", "cpu", "--init_method",
                                    file + "?rank=" + std::to_string(rank) + "&world_size=2"};
  };
  Process other(command(1), {{"OMP_NUM_THREADS", std::nullopt}});
  const Process first = run(command(0));
  EXPECT_EQ(code_, 0) << first.errors();
  EXPECT_THAT(first.output(), ContainsRegex("rank=0 world_size=2.*\n.*rank=1 world_size=2"));
  const auto status = other.wait(seconds(60));
  EXPECT_TRUE(status && status->code == 0) << other.errors();
}

TEST_F(ExamplesTest, SineOnTwoProcessesWritesItsRunFolder) {
  const Process sine = run({program_path("sine"), "--nprocs", "2", "--compute_setup", "cpu"});
  EXPECT_EQ(code_, 0) << sine.errors();
  expect_sine_output(sine.output(), 2);
  EXPECT_EQ(sine.errors(), "");

  const std::filesystem::path folder = run_folder_of(sine.output());
  std::ifstream config_file(folder / "config.json");
  const nlohmann::json config = nlohmann::json::parse(config_file);
  EXPECT_EQ(config.at("nprocs"), 2);
  EXPECT_EQ(config.at("max_iter"), 50);
  std::ifstream metrics(folder / "metrics.csv");
  std::string line;
  std::getline(metrics, line);
  const std::vector<std::string> header = track::csv_fields(line);
  const auto epoch = std::find(header.begin(), header.end(), "epoch") - header.begin();
  int lines = 0;
  int epochs = 0;
  for (; std::getline(metrics, line); ++lines) epochs += track::csv_fields(line).at(epoch).empty() ? 0 : 1;
  EXPECT_EQ(epochs, 50);
  EXPECT_EQ(lines, 200) << "a line for each of the few steps";
}

TEST_F(ExamplesTest, SineUnderMpirun) {
  const Process sine = run({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                            program_path("sine"), "--compute_setup", "cpu"});
  EXPECT_EQ(code_, 0) << sine.errors();
  expect_sine_output(sine.output(), 2);
}

TEST_F(ExamplesTest, EveryRankPrintsWhenAsked) {
  const Process sine = run({program_path("sine"), "--nprocs", "2", "--compute_setup", "cpu",
                            "--print_all_ranks", "--max_iter", "5"});
  EXPECT_EQ(code_, 0) << sine.errors();
  EXPECT_THAT(sine.output(), HasSubstr("P  0|cpu    | Iteration       5|"));
  EXPECT_THAT(sine.output(), HasSubstr("P  1|cpu    | Iteration       5|"));
}

TEST_F(ExamplesTest, ATraceShowsWhatEachRankDidInItsSteps) {
  const std::filesystem::path run_folder = folder_ / "traced";
  const Process sine = run({program_path("sine"), "--nprocs", "2", "--compute_setup", "cpu", "--max_iter",
                            "2", "--trace-steps", "3:4", "--run-dir", run_folder});
  EXPECT_EQ(code_, 0) << sine.errors();
  for (const int rank : {0, 1}) {
    std::ifstream file(run_folder / ("rank" + std::to_string(rank) + ".pt.trace.json"));
    const nlohmann::json events = nlohmann::json::parse(file).at("traceEvents");
    std::map<std::string, int> names;
    for (const nlohmann::json& event : events) {
      EXPECT_EQ(event.at("pid"), rank);
      ++names[event.value("cat", "") + ":" + event.at("name").get<std::string>() +
              event.at("ph").get<std::string>()];
    }
    EXPECT_EQ(names["user_annotation:ProfilerStep#3X"], 1);
    EXPECT_EQ(names["user_annotation:ProfilerStep#4X"], 1);
    EXPECT_EQ(names["user_annotation:forwardX"], 2) << "one of each step";
    EXPECT_EQ(names["user_annotation:backwardX"], 2);
    EXPECT_EQ(names["user_annotation:optimizerX"], 2);
    EXPECT_GE(names["user_annotation:dataX"], 2);
    EXPECT_GE(names["cpu_op:aten::addmmX"], 4) << "two layers in two steps";
    EXPECT_GE(names["cpu_op:gloo:all_reduceX"], 2);
  }
  const Process wrong = run({program_path("sine"), "--trace-steps", "4:3"});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(wrong.errors(), HasSubstr("trace_steps must be FIRST:LAST"));
}

// A physics-informed network finds the solution of the heat equation.
TEST_F(ExamplesTest, HeatConverges) {
  const Process heat = run({program_path("heat"), "--nprocs", "2", "--compute_setup", "cpu"});
  EXPECT_EQ(code_, 0) << heat.errors();
  EXPECT_THAT(heat.output(), HasSubstr("Trained 600 epochs"));
  std::smatch match;
  const std::string output = heat.output();
  ASSERT_TRUE(std::regex_search(output, match, std::regex("Relative error: ([0-9.]+)"))) << output;
  EXPECT_LT(std::stod(match[1].str()), 0.05);
}

// Both spellings of DeepSpeed's flags, and its launcher's own.
TEST_F(ExamplesTest, DeepSpeedTrainsByItsConfiguration) {
  const std::string file = std::string(std::getenv("LOCKSTEP_SOURCE_DIR")) + "/examples/ds_config.json";
  const Process first = run({program_path("deepspeed"), "--deepspeed", "--deepspeed_config", file,
                             "--local_rank", "0", "--compute_setup", "cpu"});
  EXPECT_EQ(code_, 0) << first.errors();
  EXPECT_THAT(first.output(), ContainsRegex("Loss: 0\\.[0-9]{4} after 400 steps of 32 samples on 1 ranks\n"));
  EXPECT_THAT(first.errors(), ContainsRegex("step=400, skipped=0, lr=\\[0\\.01\\], norm="));
  EXPECT_THAT(first.errors(), HasSubstr("CurrSamplesPerSec="));
  const Process second = run({program_path("deepspeed"), "--deepspeed", "--deepspeed-config", file,
                              "--nprocs", "2", "--compute_setup", "cpu"});
  EXPECT_EQ(code_, 0) << second.errors();
  EXPECT_THAT(second.output(), HasSubstr("after 400 steps of 32 samples on 2 ranks\n"));
  const Process wrong = run({program_path("deepspeed"), "--deepspeed-config", file, "--local-rank", "1"});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(wrong.errors(), HasSubstr("--local_rank is not the rank"));
}

// A set of grey pictures as MNIST's files: one bright column, the label says which.
void write_idx_set(const std::filesystem::path& folder, const std::string& name, int count) {
  const auto big_endian = [](std::ofstream& file, int value) {
    for (const int shift : {24, 16, 8, 0}) file.put(static_cast<char>(value >> shift & 0xff));
  };
  std::ofstream images(folder / (name + "-images-idx3-ubyte"), std::ios::binary);
  std::ofstream labels(folder / (name + "-labels-idx1-ubyte"), std::ios::binary);
  for (const int value : {0x803, count, 28, 28}) big_endian(images, value);
  for (const int value : {0x801, count}) big_endian(labels, value);
  for (int i = 0; i < count; ++i) {
    labels.put(static_cast<char>(i % 10));
    for (int pixel = 0; pixel < 28 * 28; ++pixel) images.put(pixel % 28 == 2 * (i % 10) ? '\xff' : '\0');
  }
}

TEST_F(ExamplesTest, MnistLearnsFromFiles) {
  write_idx_set(folder_, "train", 640);
  write_idx_set(folder_, "t10k", 100);
  const Process mnist = run({program_path("mnist"), "--nprocs", "2", "--compute_setup", "cpu", "--data",
                             folder_.string(), "--epochs", "3"});
  EXPECT_EQ(code_, 0) << mnist.errors();
  EXPECT_THAT(mnist.output(),
              ContainsRegex("Iteration       3\\| Train_Loss: .* Val_Accuracy: 1\\.0000000 -"));
  EXPECT_THAT(mnist.output(), HasSubstr("Trained 3 epochs (15 steps) on 2 ranks"));
}

TEST_F(ExamplesTest, TheVariableOfTheDataMeansWhatTheFlagMeans) {
  write_idx_set(folder_, "train", 64);
  write_idx_set(folder_, "t10k", 10);
  const auto mnist = [&](const std::string& variable, const std::vector<std::string>& more) {
    std::vector<std::string> words = {program_path("mnist"), "--compute_setup", "cpu", "--epochs", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, {{"LOCKSTEP_DATA", variable}});
  };
  const Process by_variable = mnist(folder_.string(), {});
  EXPECT_EQ(code_, 0) << by_variable.errors();
  EXPECT_THAT(by_variable.output(), HasSubstr("Trained 1 epochs (1 steps)"));
  std::ifstream config(run_folder_of(by_variable.output()) / "config.json");
  EXPECT_EQ(nlohmann::json::parse(config).at("hyperparams").at("data"), folder_.string());
  const Process by_flag = mnist("/nowhere/at-all", {"--data", folder_.string()});
  EXPECT_EQ(code_, 0) << by_flag.errors();
  const Process nowhere = mnist("/nowhere/at-all", {});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(nowhere.errors(), HasSubstr("/nowhere/at-all/MNIST/raw"));
  EXPECT_THAT(nowhere.errors(), testing::Not(HasSubstr(".cache"))) << "it is the only place";
}

TEST_F(ExamplesTest, CifarTrainsOnMadeUpImages) {
  const Process cifar =
      run({program_path("cifar100"), "--nprocs", "2", "--compute_setup", "cpu", "--data", "synthetic",
           "--global-batch-size", "4", "--max-batches", "2", "--epochs", "1", "--val-every", "0"});
  EXPECT_EQ(code_, 0) << cifar.errors();
  EXPECT_THAT(cifar.output(), HasSubstr("Trained 1 epochs (2 steps) on 2 ranks"));
}

TEST_F(ExamplesTest, VitTrainsOnMadeUpImages) {
  const Process vit = run({program_path("vit"), "--nprocs", "2", "--compute_setup", "cpu", "--data",
                           "synthetic", "--model", "tiny", "--image-size", "32", "--batch-size", "2",
                           "--max-batches", "2", "--epochs", "1", "--val-every", "0"});
  EXPECT_EQ(code_, 0) << vit.errors();
  EXPECT_THAT(vit.output(), HasSubstr("Trained 1 epochs (2 steps) on 2 ranks"));
  EXPECT_TRUE(std::filesystem::exists(run_folder_of(vit.output()) / "vit.pth"));
}

TEST_F(ExamplesTest, RanksListsEveryRankInOrder) {
  const Process ranks = run({program_path("ranks"), "--nprocs", "3", "--compute_setup", "cpu"});
  EXPECT_EQ(code_, 0) << ranks.errors();
  EXPECT_THAT(
      ranks.output(),
      ContainsRegex("rank=0 world_size=3.*local_rank=0.*\n.*rank=1 world_size=3.*local_rank=1.*\n.*rank=2"));
}

TEST_F(ExamplesTest, RanksUnderMpirunTalksMpiWhenAsked) {
  const Process ranks = run({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                             program_path("ranks"), "--compute_setup", "cpu", "--backend", "mpi"},
                            {kExcuseMpiLeaks});
  EXPECT_EQ(code_, 0) << ranks.errors();
  EXPECT_THAT(ranks.output(), HasSubstr("launcher=mpi backend=mpi"));
}

TEST_F(ExamplesTest, BadFlagIsExplainedAndEndsWithUsageStatus) {
  const Process sine = run({program_path("sine"), "--compute_setup", "tpu"});
  EXPECT_EQ(code_, 2);
  EXPECT_EQ(sine.errors(), "[config] compute_setup must be one of cpu, gpu, auto: 'tpu'\n");
  EXPECT_EQ(sine.output(), "");
}

TEST_F(ExamplesTest, HelpNamesFlagsAndVariables) {
  const Process sine = run({program_path("sine"), "--help"});
  EXPECT_EQ(code_, 0);
  EXPECT_THAT(sine.output(), HasSubstr("--compute_setup,--compute-setup"));
  EXPECT_THAT(sine.output(), HasSubstr("LOCKSTEP_BACKEND"));
}

TEST_F(ExamplesTest, AnUnusableRunFolderEndsAllRanksWithTheReason) {
  const Process sine = run(
      {program_path("sine"), "--nprocs", "2", "--compute_setup", "cpu", "--root_folder", "/dev/null/runs"});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(sine.errors(), HasSubstr("cannot make a run folder under root_folder '/dev/null/runs'"));
}

TEST_F(ExamplesTest, WhatIsWrongOnAllRanksIsSaidOnce) {
  const std::string folder = (folder_ / "nowhere").string();
  const std::vector<std::vector<std::string>> commands = {
      {"mnist", "--data", folder},
      {"cifar100", "--data", "synthetic", "--global-batch-size", "5"},
      {"vit", "--data", "synthetic", "--model", "huge"},
      {"deepspeed", "--deepspeed_config", folder}};
  for (std::vector<std::string> words : commands) {
    words[0] = program_path(words[0]);
    words.insert(words.end(), {"--nprocs", "3", "--compute_setup", "cpu"});
    const Process program = run(words);
    EXPECT_EQ(code_, 2);
    EXPECT_THAT(program.errors(), ContainsRegex("^\\[rank 0 [^]]*\\] \\["));
    EXPECT_THAT(program.errors(), testing::Not(testing::AnyOf(HasSubstr("rank 1"), HasSubstr("rank 2"))));
  }
}

TEST_F(ExamplesTest, WhatIsWrongOnOneRankIsSaidByIt) {
  const std::string file = std::string(std::getenv("LOCKSTEP_SOURCE_DIR")) + "/examples/ds_config.json";
  const Process program = run({program_path("deepspeed"), "--deepspeed_config", file, "--local_rank", "0",
                               "--nprocs", "2", "--compute_setup", "cpu"});
  // Both end at about the same time: the one with the error counts, not the one that misses it.
  EXPECT_EQ(code_, kExitUsage);
  EXPECT_THAT(program.errors(), ContainsRegex("\\[rank 1 [^]]*\\] \\[deepspeed\\] --local_rank is not"));
}

TEST_F(ExamplesTest, HalfAnEnvironmentIsAnErrorAndNoWorldOfOne) {
  const Process sine = run({program_path("sine")}, {{"RANK", "1"}});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(sine.errors(), testing::AllOf(HasSubstr("RANK='1'"), HasSubstr("WORLD_SIZE")));
}

}  // namespace
}  // namespace lockstep::test
