// The callbacks for what the fields of TrainConfig do, on_train_end, and fields whose effect is on output.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <lockstep/json.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/catalog.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

class FitCallbacksTest : public testing::Test {
 protected:
  FitCallbacksTest() {
    training_.config = test::quiet_config(folder_.path() / "run");
    training_.config.max_iter = 4;
    training_.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  }

  template <typename C, typename... Arguments>
  void add(Arguments&&... arguments) {
    training_.config.callbacks.push_back(std::make_shared<C>(std::forward<Arguments>(arguments)...));
  }

  std::string run_and_capture() {
    testing::internal::CaptureStdout();
    training_.run();
    return testing::internal::GetCapturedStdout();
  }

  std::vector<std::string> lines_of(const std::string& file) const {
    std::ifstream stream(folder_.path() / "run" / file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    const auto parent = folder_.path() / "run" / "checkpoints";
    if (!std::filesystem::exists(parent)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  test::TemporaryFolder folder_;
  Training training_;
};

TEST_F(FitCallbacksTest, PrintMetricsPrintsAtItsStageAndPeriod) {
  training_.config.verbose = true;
  training_.config.progress = "none";
  training_.config.val_every = 1;
  training_.config.val_at_start = false;
  add<PrintMetrics>(CallbackOptions{.on = Stage::kValEpochEnd, .called_every = 2});
  const std::string output = run_and_capture();
  EXPECT_THAT(output, testing::ContainsRegex(
                          "P  0\\|cpu    \\| Iteration       2\\| Train_Loss: [0-9.]+ - Val_Loss: "));
  EXPECT_THAT(output, HasSubstr("| Iteration       4|"));
  EXPECT_THAT(output, Not(HasSubstr("| Iteration       3|")));
}

TEST_F(FitCallbacksTest, WriteMetricsWritesAtItsStage) {
  training_.config.write_every = 0;
  add<WriteMetrics>(CallbackOptions{.on = Stage::kTrainEpochEnd, .called_every = 2});
  training_.run();
  const auto lines = lines_of("metrics.csv");
  ASSERT_EQ(lines.size(), 3) << "a heading, epochs 2 and 4";
  EXPECT_THAT(lines[0], testing::AllOf(HasSubstr("train_loss"), HasSubstr("learning_rate")));
}

TEST_F(FitCallbacksTest, WritePlotsCallsTheFunctions) {
  std::vector<int64_t> drawn;
  training_.config.plotting_functions = {[&](const Model&, int64_t iteration) {
    drawn.push_back(iteration);
    return std::pair("plot",
                     Image{.height = 1, .width = 1, .channels = 3, .pixels = std::vector<uint8_t>(3)});
  }};
  add<WritePlots>(CallbackOptions{.on = Stage::kTrainEpochEnd, .called_every = 3});
  add<WritePlots>(CallbackOptions{.on = Stage::kTrainEnd});
  training_.run();
  EXPECT_THAT(drawn, ElementsAre(3, 4));
}

TEST_F(FitCallbacksTest, LogModelTrackerAndHyperparameters) {
  training_.config.hyperparams = {{"lr", 0.25}};
  add<LogModelTracker>();
  add<LogHyperparameters>(CallbackOptions{.on = Stage::kTrainEpochEnd});
  training_.run();
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run" / "model.safetensors"));
  int64_t records = 0;
  for (const std::string& line : lines_of("metrics.jsonl"))
    records += line.find("\"lr\"") != std::string::npos ? 1 : 0;
  EXPECT_GE(records, 2 + 4) << "at the start, at the end, and after each epoch";
}

TEST_F(FitCallbacksTest, SaveCheckpointSavesWithoutAField) {
  add<SaveCheckpoint>(CallbackOptions{.on = Stage::kTrainEpochEnd, .called_every = 3});
  training_.run();
  EXPECT_EQ(checkpoints().size(), 2) << "after epoch 3, and at the end";
  // The run in this folder has ended: it resumes, and trains no further.
  EXPECT_EQ(training_.run().result.steps, 16);
}

TEST_F(FitCallbacksTest, SaveBestCheckpointSavesOnlyTheBest) {
  training_.config.val_every = 1;
  // The first validation is the best.
  training_.config.validation_criterion = [](double, double best, double) { return std::isinf(best); };
  add<SaveBestCheckpoint>();
  training_.config.val_at_start = false;
  training_.config.checkpoint_async = false;
  training_.config.checkpoint_keep = 10;
  training_.run();
  EXPECT_EQ(checkpoints().size(), 2) << "after the first epoch, and at the end";
  EXPECT_THAT([] { SaveBestCheckpoint({.on = Stage::kTrainEpochEnd}); },
              ThrowsMessage<ConfigError>(HasSubstr("val_epoch_end, not train_epoch_end")));
}

TEST_F(FitCallbacksTest, WhatACallbackNeedsIsCheckedAtTheStart) {
  const auto refusal = [this](std::shared_ptr<Callback> callback, int stage = 0) {
    Training training = training_;
    training.config.zero.stage = stage;
    training.config.callbacks = {std::move(callback)};
    return test::error_of([&] { training.run(); });
  };
  EXPECT_THAT(refusal(std::make_shared<SaveBestCheckpoint>()),
              HasSubstr("SaveBestCheckpoint needs validation, and val_every is 0"));
  EXPECT_THAT(refusal(std::make_shared<WritePlots>()),
              HasSubstr("WritePlots draws plotting_functions, and there are none"));
  EXPECT_THAT(refusal(std::make_shared<WritePlots>(), /*stage=*/3), HasSubstr("zero_stage 3"));
}

// Ranks have different numbers of batches in a validation.
TEST_F(FitCallbacksTest, WhatNeedsAllRanksHasNoStageOfSingleBatchesOfAValidation) {
  for (const Stage stage :
       {Stage::kValBatchStart, Stage::kValBatchEnd, Stage::kTestBatchStart, Stage::kTestBatchEnd}) {
    SCOPED_TRACE(to_string(stage));
    EXPECT_THAT(test::error_of([stage] { SaveCheckpoint({.on = stage}); }),
                HasSubstr("SaveCheckpoint needs all ranks"));
    EXPECT_THAT(test::error_of([stage] { LogModelTracker({.on = stage}); }),
                HasSubstr("LogModelTracker needs all ranks"));
    PrintMetrics({.on = stage});
  }
  SaveCheckpoint({.on = Stage::kTrainBatchEnd});
  LogModelTracker({.on = Stage::kValEpochEnd});
}

TEST_F(FitCallbacksTest, LoadCheckpointResumes) {
  training_.config.checkpoint_every = 1;
  training_.run();
  Training second = training_;
  second.config.log_folder = (folder_.path() / "second").string();
  second.config.max_iter = 6;
  second.config.callbacks = {std::make_shared<LoadCheckpoint>((folder_.path() / "run").string())};
  const auto resumed = second.run();
  EXPECT_EQ(resumed.result.epochs, 6);
  Training whole = training_;
  whole.config.log_folder = (folder_.path() / "whole").string();
  whole.config.max_iter = 6;
  test::expect_equal_weights(resumed, whole.run());
}

TEST_F(FitCallbacksTest, LivePlotShowsTheCurves) {
  const auto plot = std::make_shared<LivePlotMetrics>(LivePlotOptions{
      .callback = {.on = Stage::kTrainEpochEnd, .called_every = 2}, .width = 20, .height = 5});
  training_.config.callbacks = {plot};
  const std::string output = run_and_capture();
  EXPECT_THAT(output, HasSubstr("epoch 2 to 4  a: train_loss "));
  LivePlotMetrics copy(LivePlotOptions{.width = 20, .height = 5});
  copy.load_state(plot->state());
  EXPECT_EQ(copy.plot(), plot->plot());
  const std::string text = copy.plot();
  EXPECT_THAT(output, HasSubstr(text));
  EXPECT_EQ(std::count(text.begin(), text.end(), 'a'), 2 + 1 /* legend */ + 1 /* train */);
  EXPECT_THAT([] { LivePlotMetrics({.width = 1}); }, ThrowsMessage<ConfigError>(HasSubstr("2 x 2")));
}

class EndLosses : public Trainer {
 public:
  using Trainer::Trainer;
  std::vector<double> train;
  std::vector<double> val;

 protected:
  void on_train_end(const std::vector<double>& train_losses, const std::vector<double>& val_losses) override {
    train = train_losses;
    val = val_losses;
  }
};

TEST_F(FitCallbacksTest, TheEndGetsAllLossesAlsoThoseBeforeAResume) {
  const auto losses = [this](const std::string& folder, std::vector<int64_t> ends) {
    std::pair<std::vector<double>, std::vector<double>> all;
    for (const int64_t end : ends) {
      TrainConfig config = training_.config;
      config.log_folder = (folder_.path() / folder).string();
      config.max_iter = end;
      config.val_every = 2;
      config.checkpoint_every = 1;
      World world(RankMap{}, Communicator(), torch::kCPU);
      torch::manual_seed(3);
      torch::nn::Sequential model(torch::nn::Linear(1, 4), torch::nn::Linear(4, 1));
      torch::optim::SGD optimizer(model->parameters(), 0.01);
      EndLosses trainer(world, model, optimizer, config);
      const Loader data(training_.dataset(), {.batch_size = 16});
      trainer.fit(data, data);
      all = {trainer.train, trainer.val};
    }
    return all;
  };
  const auto whole = losses("whole", {5});
  EXPECT_EQ(whole.first.size(), 5);
  EXPECT_EQ(whole.second.size(), 3) << "before the first epoch, after epochs 2 and 4";
  EXPECT_GT(whole.first.front(), whole.first.back());
  EXPECT_EQ(losses("parts", {3, 5}), whole);
}

// --- fields ---

TEST_F(FitCallbacksTest, ValEpsilonIsTheLeastImprovement) {
  // With this epsilon no validation after the first is a new best.
  training_.config.val_every = 1;
  training_.config.checkpoint_best_only = true;
  training_.config.val_at_start = false;
  training_.config.checkpoint_keep = 10;
  training_.config.max_iter = 4;
  std::vector<double> epsilons;
  training_.config.val_epsilon = 0.125;
  training_.config.validation_criterion = [&](double loss, double best, double epsilon) {
    epsilons.push_back(epsilon);
    return loss < best - epsilon;
  };
  training_.run();
  EXPECT_THAT(epsilons, testing::Each(0.125));
  EXPECT_FALSE(epsilons.empty());
}

// Of the usual criterion too: the later validations are better, but not by this epsilon.
TEST_F(FitCallbacksTest, ValEpsilonDecidesWithoutACriterion) {
  const auto saved = [this](const std::string& folder, double epsilon) {
    Training training = training_;
    training.config.log_folder = (folder_.path() / folder).string();
    training.config.val_every = 1;
    training.config.val_at_start = false;
    training.config.checkpoint_best_only = true;
    training.config.val_epsilon = epsilon;
    training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
    training.run();
    const auto entries = checkpoint::list(folder_.path() / folder / "checkpoints");
    return entries.empty() ? -1 : entries.front().step;
  };
  EXPECT_GT(saved("any", 0), 4);
  EXPECT_EQ(saved("large", 1e6), 4) << "the first is better than none";
}

TEST_F(FitCallbacksTest, WithoutAllReduceTheMetricsAreThoseOfRank0) {
  training_.ranks = 2;
  training_.loader = {.batch_size = 16, .shuffle = false};
  training_.config.max_iter = 1;
  training_.make_optimizer = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 0.0);
  };
  // The metric is the mean of the inputs: with rate 0 it depends on the rank's samples alone.
  training_.loss = [](const Batch& batch, const Model& model) -> LossResult {
    return {mse(batch, model), {{"input", batch.data().mean()}}};
  };
  const auto written = [this](bool all_reduce) {
    training_.config.all_reduce_metrics = all_reduce;
    training_.config.log_folder = (folder_.path() / (all_reduce ? "all" : "own")).string();
    const auto outcome = training_.run();
    std::ifstream file(std::filesystem::path(outcome.result.run_folder) / "metrics.csv");
    std::string names;
    std::string values;  // the last row: that of the epoch, after those of steps
    std::getline(file, names);
    for (std::string row; std::getline(file, row);) values = row;
    const auto column = std::count(
        names.begin(), names.begin() + static_cast<std::ptrdiff_t>(names.find("train_input")), ',');
    size_t at = 0;
    for (int64_t i = 0; i < column; ++i) at = values.find(',', at) + 1;
    return std::pair(std::stod(values.substr(at)), outcome.result.metrics.at("train_input"));
  };
  // Samples 0, 2, 4, ... of 64 points from 0 to 1 are rank 0's.
  const double own = 31.0 / 63.0;
  const auto [all_written, all_result] = written(true);
  EXPECT_NEAR(all_written, 0.5, 1e-6);
  const auto [own_written, own_result] = written(false);
  EXPECT_NEAR(own_written, own, 1e-6);
  EXPECT_NEAR(own_result, 0.5, 1e-6) << "decisions use the metrics of all ranks";
  EXPECT_NEAR(all_result, 0.5, 1e-6);
}

TEST_F(FitCallbacksTest, WithoutASubfolderTheRunFolderHasTheProgramsName) {
  training_.config.log_folder.clear();
  training_.config.root_folder = (folder_.path() / "runs").string();
  training_.config.run_name = "mine";
  training_.config.create_subfolder_per_run = false;
  EXPECT_EQ(training_.run().result.run_folder, (folder_.path() / "runs" / "mine").string());
  training_.config.create_subfolder_per_run = true;
  EXPECT_THAT(training_.run().result.run_folder, HasSubstr((folder_.path() / "runs" / "mine_").string()));
}

TEST_F(FitCallbacksTest, OnPreemptionRunsBeforeTheJobEnds) {
  std::vector<int64_t> saved_at;
  training_.prepare = [&](Trainer& trainer) {
    trainer.on_preemption([&] { saved_at.push_back(trainer.result().step); });
  };
  training_.config.callbacks = {std::make_shared<Callback>(
      CallbackOptions{.on = Stage::kTrainBatchEnd, .called_every = 6}, [](Trainer&) { raise(SIGUSR1); })};
  EXPECT_THROW(training_.run(), Preempted);
  // Fast steps ask for signals ever more rarely, at most after steps 1, 3, 7 and 15.
  EXPECT_THAT(saved_at, ElementsAre(testing::AllOf(testing::Ge(6), testing::Lt(16))));
  EXPECT_TRUE(checkpoints().empty()) << "checkpoints are off";
}

// --- models with several inputs and named outputs ---

struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl()
      : a(register_module("a", torch::nn::Linear(1, 4))), b(register_module("b", torch::nn::Linear(1, 4))) {}
  ModelOutputs forward(const torch::Tensor& x, const torch::Tensor& z) {
    const torch::Tensor sum = a(x) + b(z);
    return std::vector<std::pair<std::string, torch::Tensor>>{{"sum", sum.sum(1, true)}, {"parts", sum}};
  }
  torch::nn::Linear a, b;
};
TORCH_MODULE(TwoInputs);

TEST_F(FitCallbacksTest, AModelOfTwoInputsTrainsAlikeOnOneAndTwoRanks) {
  const auto weights = [this](int ranks) {
    Training training = training_;
    training.ranks = ranks;
    training.config.global_batch_size = 16;
    training.config.log_folder = (folder_.path() / fmt::format("two-{}", ranks)).string();
    training.make_model = [] { return Model(TwoInputs()); };
    training.fit = [](Trainer& trainer, const Loader&) {
      const torch::Tensor x = torch::linspace(0, 1, 64, torch::kDouble).reshape({-1, 1});
      const Loader data(TensorDataset{x, x.square(), 3 * x}, {.batch_size = 16, .shuffle = true});
      EXPECT_EQ(trainer.model().num_inputs(), 2);
      const FitResult result = trainer.fit(data, data);
      const torch::Tensor outputs =
          trainer.predict(Loader(TensorDataset{x, x.square(), 3 * x}, {.batch_size = 16}));
      EXPECT_EQ(outputs.sizes(), (at::IntArrayRef{64, 1}));
      const torch::NoGradGuard no_grad;
      const ModelOutputs named = trainer.model().call({x, x.square()});
      EXPECT_TRUE(torch::allclose(named["sum"], outputs));
      EXPECT_EQ(named["parts"].size(1), 4);
      EXPECT_THAT([&] { named["other"]; }, ThrowsMessage<ConfigError>(HasSubstr("it has sum, parts")));
      EXPECT_THAT([&] { trainer.model()(x); }, ThrowsMessage<ConfigError>(HasSubstr("takes 2 input(s)")));
      return result;
    };
    return training.run();
  };
  test::expect_close_weights(weights(1), weights(2));
}

TEST_F(FitCallbacksTest, TooFewTensorsForTheInputsIsAnError) {
  training_.make_model = [] { return Model(TwoInputs()); };
  EXPECT_THAT([this] { training_.run(); }, ThrowsMessage<ConfigError>(HasSubstr("the data give no target")));
}

}  // namespace
}  // namespace lockstep
