#include "train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

RunEnd finished_end() {
  return {.epochs = 3,
          .steps = 12,
          .max_iter = 3,
          .checkpoint_step = 8,
          .stopped = "early",
          .metrics = {{"val_loss", 0.25}, {"train_loss", std::numeric_limits<double>::infinity()}}};
}

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() {
    config_.root_folder = folder_.path().string();
    config_.run_name = "net";
    config_.hyperparams = {{"lr", 0.1}};
  }

  // A program that makes one training; `ends`: it comes to its end.
  std::string program(const TrainConfig& config, const base::Environment& environment, bool ends,
                      int fits = 1) const {
    World world(RankMap{}, Communicator(), c10::kCPU);
    std::string names;
    for (int i = 0; i < fits; ++i) {
      const RunFolder run(world, config, environment);
      run.describe(world, config, std::nullopt);
      if (ends) run.record_end(world, finished_end());
      names += (i > 0 ? " " : "") + run.path().filename().string();
    }
    return names;
  }

  static TrainConfig with_rate(TrainConfig config, double rate) {
    config.hyperparams["lr"] = rate;
    return config;
  }

  static base::Environment in_job(const char* restarts = nullptr) {
    base::Environment environment{{"SLURM_JOB_ID", "7"}};
    if (restarts != nullptr) environment.set("SLURM_RESTART_COUNT", restarts);
    return environment;
  }

  static base::Environment under_launcher(const char* generation) {
    return {{"SLURM_JOB_ID", "7"}, {"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_RESTART_COUNT", generation}};
  }

  test::TemporaryFolder folder_;
  TrainConfig config_;
};

TEST_F(RunFolderTest, EachConfigurationOfAJobHasItsOwn) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(program(with_rate(config_, 0.1), in_job(), /*ends=*/true), "net_job7");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job(), true), "net_job7-2");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("net_job7' of this job holds a run with hyperparams {\"lr\":0.1}"),
                    HasSubstr("this one is in"), HasSubstr("net_job7-2'")));
  EXPECT_EQ(program(with_rate(config_, 0.3), in_job(), true), "net_job7-3");
}

TEST_F(RunFolderTest, AFinishedRunIsNotTakenAgainByTheSameStartOfTheJob) {
  EXPECT_EQ(program(config_, in_job(), /*ends=*/true), "net_job7");
  testing::internal::CaptureStderr();
  EXPECT_EQ(program(config_, in_job(), true), "net_job7-2");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("holds a run that has finished"));
}

TEST_F(RunFolderTest, AnUnfinishedRunOfTheSameConfigurationGoesOn) {
  EXPECT_EQ(program(with_rate(config_, 0.1), in_job(), /*ends=*/false), "net_job7");
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job(), false), "net_job7-2") << "of another one it does not";
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job(), true), "net_job7-2");
  EXPECT_EQ(program(with_rate(config_, 0.1), in_job(), true), "net_job7");
}

// The batch script starts from its beginning.
TEST_F(RunFolderTest, ARequeuedJobFindsItsRunsOneAfterTheOther) {
  EXPECT_EQ(program(config_, in_job(), true), "net_job7");
  EXPECT_EQ(program(config_, in_job(), true), "net_job7-2");
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job(), false), "net_job7-3") << "preempted here";
  EXPECT_EQ(program(config_, in_job("1"), true), "net_job7");
  EXPECT_EQ(program(config_, in_job("1"), true), "net_job7-2");
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job("1"), true), "net_job7-3");
  EXPECT_EQ(program(config_, in_job("1"), true), "net_job7-4") << "there was no third one before";
}

TEST_F(RunFolderTest, ALauncherThatStartsTheRanksAgainFindsItsRun) {
  EXPECT_EQ(program(config_, under_launcher("0"), true), "net_job7");
  EXPECT_EQ(program(config_, under_launcher("1"), true), "net_job7") << "finished, and failed after it";
  EXPECT_EQ(program(with_rate(config_, 0.2), under_launcher("1"), false), "net_job7-2");
  // With fewer ranks a program may divide its batch differently.
  TrainConfig changed = with_rate(config_, 0.2);
  changed.batch_size = 128;
  EXPECT_EQ(program(changed, under_launcher("2"), false), "net_job7-2");
}

TEST_F(RunFolderTest, HowRanksMeetIsNoOtherConfiguration) {
  EXPECT_EQ(program(config_, in_job(), false), "net_job7");
  TrainConfig moved = config_;
  moved.nprocs = 1;
  moved.init_method = "tcp://node2:29500";
  EXPECT_EQ(program(moved, in_job(), false), "net_job7");
}

// A job that is queued again may find a newer release.
TEST_F(RunFolderTest, AnOptionThatIsNewIsNoOtherConfiguration) {
  EXPECT_EQ(program(config_, in_job(), false), "net_job7");
  const auto path = folder_.path() / "net_job7/config.json";
  std::ifstream file(path);
  Json saved = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  saved.erase("deterministic");
  std::ofstream(path) << saved.dump();
  EXPECT_EQ(program(config_, in_job("1"), false), "net_job7");
  config_.deterministic = true;
  EXPECT_EQ(program(config_, in_job("1"), false), "net_job7-2");
}

TEST_F(RunFolderTest, SeveralTrainingsOfAProgramAreToldApart) {
  EXPECT_EQ(program(config_, in_job(), false, /*fits=*/2), "net_job7 net_job7-2");
  EXPECT_EQ(program(config_, in_job("1"), true, 2), "net_job7 net_job7-2");
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job("1"), true, 2), "net_job7-3 net_job7-4");
}

TEST_F(RunFolderTest, ARunThatStillRunsKeepsItsFolder) {
  World world(RankMap{}, Communicator(), c10::kCPU);
  const RunFolder running(world, config_, in_job());
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job(), true), "net_job7-2");
  EXPECT_THAT([&] { program(config_, in_job(), true); },
              ThrowsMessage<ConfigError>(HasSubstr("another run writes into")));
}

TEST_F(RunFolderTest, AnExactFolderIsTakenWhateverIsInIt) {
  config_.log_folder = (folder_.path() / "mine").string();
  EXPECT_EQ(program(config_, in_job(), true), "mine");
  EXPECT_EQ(program(with_rate(config_, 0.2), in_job(), true), "mine");
}

TEST_F(RunFolderTest, RemembersHowTheRunEnded) {
  config_.log_folder = (folder_.path() / "mine").string();
  program(config_, {}, true);
  World world(RankMap{}, Communicator(), c10::kCPU);
  {
    const RunFolder again(world, config_, {});
    EXPECT_EQ(again.path().filename(), "mine");
    ASSERT_TRUE(again.end());
    const RunEnd expected = finished_end();
    EXPECT_EQ(again.end()->epochs, expected.epochs);
    EXPECT_EQ(again.end()->steps, expected.steps);
    EXPECT_EQ(again.end()->max_iter, expected.max_iter);
    EXPECT_EQ(again.end()->checkpoint_step, expected.checkpoint_step);
    EXPECT_EQ(again.end()->stopped, expected.stopped);
    EXPECT_EQ(again.end()->metrics, expected.metrics);
    again.describe(world, config_, std::nullopt);
  }
  World other(RankMap{}, Communicator(), c10::kCPU);
  EXPECT_FALSE(RunFolder(other, config_, {}).end()) << "it runs again";
}

TEST_F(RunFolderTest, ARecordThatIsNotUnderstoodIsNoEnd) {
  config_.log_folder = (folder_.path() / "mine").string();
  program(config_, {}, true);
  std::ofstream(folder_.path() / "mine/run.json") << R"({"end": {"epochs": 3}})";
  World world(RankMap{}, Communicator(), c10::kCPU);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(RunFolder(world, config_, {}).end());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("counts as unfinished"));
}

}  // namespace
}  // namespace lockstep::train
