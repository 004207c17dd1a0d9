#include "report/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "report/chart.h"
#include "support/config_error.h"
#include "unit/report/run_files.h"

namespace lockstep::report {
namespace {

using test::error_of;
using test::RunFiles;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(RunTest, ReadsAWholeRun) {
  RunFiles files;
  files
      .write("metrics.csv",
             "step,epoch,train_loss,val_accuracy,samples_per_s\n"
             "5,1,0.5,0.8,100\n10,2,0.25,0.7,300\n15,3,0.3,0.75,200\n")
      .write("metrics.jsonl",
             "{\"step\":0,\"time\":100.0,\"text\":\"model\",\"content\":\"Linear(1, 16)\"}\n"
             "{\"step\":5,\"time\":130.0,\"train_loss\":0.5}\n"
             "{\"step\":15,\"time\":225.0,\"train_loss\":0.3}\n")
      .write("config.json", "{\"seed\": 3, \"max_iter\": 10}")
      .write("config_defaults.json", "{\"seed\": 0, \"max_iter\": 10000}")
      .write("ranks.json",
             "{\"backend\": \"nccl\", \"ranks\": [{\"rank\": 0, \"local_rank\": 0, \"host\": \"a\", "
             "\"device\": \"cuda:0\"}, {\"rank\": 1, \"local_rank\": 0, \"host\": \"b\", "
             "\"device\": \"cuda:0\"}]}");
  const auto run = read_run(files.path());
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.model, "Linear(1, 16)");
  EXPECT_THAT(run.times, ElementsAre(Point{0, 100}, Point{5, 130}, Point{15, 225}));
  EXPECT_EQ(run.ranks.at(1).host, "b");
  EXPECT_THAT(run.remarks, IsEmpty());

  std::map<std::string, Fact> facts;
  for (const Fact& fact : facts_of(run)) facts[fact.label] = fact;
  EXPECT_EQ(facts["Training loss"].value, "0.3");
  EXPECT_EQ(facts["Training loss"].detail, "best 0.25 at epoch 2");
  EXPECT_EQ(facts["Validation accuracy"].detail, "best 0.8 at epoch 1");
  EXPECT_EQ(facts["Epochs"].detail, "of 10 at most");
  EXPECT_EQ(facts["Samples/s"].value, "200");
  EXPECT_EQ(facts["Duration"].value, "2 min 05 s");
  EXPECT_EQ(facts["Ranks"].detail, "cuda on 2 hosts, nccl");
}

TEST(RunTest, ATrailingSlashAndADotAreTheFolder) {
  RunFiles files;
  files.write("config.json", "{}");
  EXPECT_EQ(read_run(files.path() / "").name, "run");
  EXPECT_EQ(read_run(files.path() / ".").name, "run");
}

TEST(RunTest, WhatIsMissingIsSaid) {
  RunFiles files;
  files.write("metrics.csv", "step,loss\n1,0.5\n");
  EXPECT_THAT(read_run(files.path()).remarks, ElementsAre("config.json is missing"));
}

TEST(RunTest, MetricsComeFromJsonLinesWhereTheTableIsGone) {
  RunFiles files;
  files.write("metrics.csv", "")
      .write("config.json", "{}")
      .write("metrics.jsonl", "{\"step\":1,\"time\":2.0,\"loss\":0.5}\n");
  const auto run = read_run(files.path());
  EXPECT_EQ(run.metrics.rows(), 1);
  EXPECT_THAT(run.remarks, ElementsAre(HasSubstr("the metrics are those of metrics.jsonl")));
}

TEST(RunTest, CutOffAndForeignFilesAreSaidAndLeftOut) {
  RunFiles files;
  files.write("metrics.csv", "step,loss\n1,nan\n2,0.5\n")
      .write("config.json", "{\"seed\": ")
      .write("ranks.json", "[1, 2]")
      .write("metrics.jsonl", std::string(1000, '\0'))
      .write("gpu.csv", "\xff\xd8\xff\xe0 JFIF");
  const auto run = read_run(files.path());
  EXPECT_TRUE(run.config.empty());
  EXPECT_TRUE(run.ranks.empty());
  EXPECT_THAT(run.remarks, Contains("config.json: not a JSON object, it may be cut off"));
  EXPECT_THAT(run.remarks, Contains("ranks.json: not a JSON object, it may be cut off"));
  EXPECT_THAT(run.remarks, Contains(HasSubstr("gpu.csv: not a log of GPUs")));
  EXPECT_THAT(run.remarks, Contains("loss: 1 value is nan or infinite, the first at step 1"));
}

TEST(RunTest, ValuesOfOtherTypesAreLeftOut) {
  RunFiles files;
  files.write("metrics.csv", "step,epoch\n1,1\n")
      .write("config.json", "{\"max_iter\": \"many\", \"nprocs\": [], \"x\": {\"y\": [1]}}")
      .write("ranks.json", "{\"backend\": 3, \"ranks\": [7, {\"rank\": \"one\", \"host\": null}, {}]}");
  const auto run = read_run(files.path());
  EXPECT_EQ(run.ranks.size(), 2u);
  EXPECT_NO_THROW(facts_of(run));
}

// A pipe in the place of a file would wait for a writer for ever.
TEST(RunTest, APipeIsNoFile) {
  RunFiles files;
  files.write("config.json", "{}");
  for (const char* name : {"metrics.csv", "metrics.jsonl", "ranks.json", "gpu.csv"}) {
    ASSERT_EQ(::mkfifo((files.path() / name).c_str(), 0600), 0);
  }
  EXPECT_EQ(read_run(files.path()).metrics.rows(), 0);
}

TEST(RunTest, AFolderThatIsNoRunIsRefused) {
  RunFiles files("sine_1");
  const auto read = [](const std::filesystem::path& path) { return error_of([&] { read_run(path); }); };
  EXPECT_THAT(
      read(files.path()),
      HasSubstr(
          "[report] the folder is not a run, it has none of metrics.csv, metrics.jsonl, config.json: '"));
  EXPECT_THAT(read(files.path() / "nowhere"), HasSubstr("there is no such folder"));
  files.write("metrics.csv", "step\n");
  EXPECT_THAT(read(files.path() / "metrics.csv"), HasSubstr("there is no such folder"));
  EXPECT_THAT(read(files.parent()), HasSubstr("runs below it: " + files.path().string()));
}

TEST(RunTest, EveryHyperparameterIsAnOption) {
  RunFiles files;
  files.write("config.json", R"({"seed": 3, "hyperparams": {"lr": 0.1, "data": "x"}})")
      .write("config_defaults.json", R"({"seed": 0, "hyperparams": {"lr": 0.2}})");
  const auto run = read_run(files.path());
  EXPECT_EQ(run.config, Json({{"hyperparams.data", "x"}, {"hyperparams.lr", 0.1}, {"seed", 3}}));
  EXPECT_EQ(run.defaults, Json({{"hyperparams.lr", 0.2}, {"seed", 0}}));
}

TEST(SummaryTest, NumbersAreShortAndReadable) {
  EXPECT_EQ(number_text(0.371454689), "0.37145");
  EXPECT_EQ(number_text(1234567), "1,234,567");
  EXPECT_EQ(number_text(-12345), "-12,345");
  EXPECT_EQ(number_text(1999), "1999");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(duration_text(0.334), "0.33 s");
  EXPECT_EQ(duration_text(59.6), "60 s");
  EXPECT_EQ(duration_text(7505), "2 h 05 min");
}

// Nothing of an epoch is known before its end.
TEST(RunTest, TheFirstEpochHasTheLossOfItsSteps) {
  RunFiles files;
  files.write("metrics.csv", "step,step_loss,samples_per_s\n2,0.5,10\n4,0.25,12\n");
  std::map<std::string, Fact> facts;
  for (const Fact& fact : facts_of(read_run(files.path()))) facts[fact.label] = fact;
  EXPECT_EQ(facts["Loss of a step"].value, "0.25");
  EXPECT_EQ(facts["Steps"].value, "4");
  EXPECT_FALSE(facts.contains("Epochs"));
  std::vector<std::string> remarks;
  EXPECT_FALSE(charts_of({read_run(files.path())}, remarks).at(0).series.at(0).thin)
      << "there is no other line";
}

}  // namespace
}  // namespace lockstep::report
