// The trainer under a DeepSpeed configuration, against its own options of the same meaning.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <lockstep/callbacks.h>
#include <lockstep/deepspeed.h>

#include <fstream>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "support/config_error.h"
#include "support/counted_saves.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/deepspeed/make_schedule.h"

namespace lockstep {
namespace {

using test::Training;
using testing::HasSubstr;
using testing::Not;

class DeepSpeedTrainerTest : public testing::Test {
 protected:
  std::string file(const std::string& text) const {
    const std::string path = folder_.path() / "ds.json";
    std::ofstream(path) << text;
    return path;
  }

  Training training(int ranks, const std::string& name) const {
    Training training;
    training.ranks = ranks;
    training.samples = 96;
    training.loader.batch_size = 24 / ranks;
    training.make_optimizer = [](auto parameters) {
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.02));
    };
    training.config = test::quiet_config(folder_.path() / name);
    training.config.dtype = "float32";
    return training;
  }

  Training governed(int ranks, const std::string& name, const std::string& text) const {
    Training result = training(ranks, name);
    result.config.deepspeed_config = file(text);
    return result;
  }

  test::TemporaryFolder folder_{"/dev/shm"};
};

// An optimizer of the program, clipping by default, every stage.
TEST_F(DeepSpeedTrainerTest, StagesEqualTheTrainersOwn) {
  for (const int ranks : {1, 2}) {
    Training own = training(ranks, "own");
    own.config.clip_grad_norm = 1.0;
    const Training::Outcome expected = own.run();
    for (int stage = 0; stage <= 3; ++stage) {
      const Training::Outcome outcome =
          governed(ranks, "file", fmt::format("zero_optimization: {{\nstage: {}\n}}", stage)).run();
      EXPECT_EQ(outcome.result.steps, expected.result.steps);
      test::expect_close_weights(outcome, expected, 1e-5);
      EXPECT_NEAR(outcome.result.train_loss, expected.result.train_loss, 1e-6);
    }
  }
}

TEST_F(DeepSpeedTrainerTest, TheFilesOptimizerBatchAndAccumulationCount) {
  Training own = training(2, "own");
  own.config.batch_size = 6;
  own.config.accumulate_steps = 2;
  own.make_optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  const Training::Outcome expected = own.run();
  const Training::Outcome outcome = governed(2, "file", R"({
    "train_batch_size": 24, "gradient_accumulation_steps": 2, "gradient_clipping": 0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}},
    "zero_optimization": {"stage": 2}})")
                                        .run();
  EXPECT_EQ(outcome.result.steps, expected.result.steps);
  test::expect_close_weights(outcome, expected, 1e-5);
}

TEST_F(DeepSpeedTrainerTest, GoesOnBitForBitAtEveryStageInBf16WithASchedule) {
  for (int stage = 0; stage <= 3; ++stage) {
    const std::string text =
        fmt::format(R"({{"bf16": {{"enabled": true}}, "zero_optimization": {{"stage": {}}},
      "optimizer": {{"type": "AdamW", "params": {{"lr": 0.02}}}},
      "scheduler": {{"type": "WarmupLR", "params": {{"warmup_num_steps": 20}}}}}})",
                    stage);
    Training first = governed(2, fmt::format("first{}", stage), text);
    first.config.checkpoint_every = 3;
    first.config.checkpoint_keep = 10;
    const Training::Outcome straight = first.run();
    Training rest = governed(2, "rest", text);
    rest.config.resume = folder_.path() / fmt::format("first{}", stage) / "checkpoints/step-0000000012";
    const Training::Outcome outcome = rest.run();
    EXPECT_EQ(outcome.result.steps, straight.result.steps);
    test::expect_equal_weights(outcome, straight);
  }
}

TEST_F(DeepSpeedTrainerTest, Fp16SkipsWhatOverflowsAndSaysHowOften) {
  const Training::Outcome outcome = governed(2, "fp16", R"({
    "fp16": {"enabled": true, "initial_scale_power": 30, "hysteresis": 1}, "zero_optimization": {"stage": 1}})")
                                        .run();
  EXPECT_GT(outcome.result.skipped_steps, 0);
  EXPECT_LT(outcome.result.skipped_steps, outcome.result.steps);
  EXPECT_TRUE(std::isfinite(outcome.result.train_loss));
}

// What an engine saved, without a trainer: its counters, its schedule and its loss scale go on.
TEST_F(DeepSpeedTrainerTest, GoesOnFromWhatAnEngineSaved) {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 24,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}}})";
  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Dropout(0),
                            torch::nn::Linear(16, 1));
  auto engine = initialize(net, DeepSpeedConfig::from_text(text, "ds.json"), Communicator());
  const auto x = torch::linspace(0, 1, 24).reshape({-1, 1});
  for (int step = 0; step < 10; ++step) {
    engine.backward(torch::mse_loss(engine.forward(x), torch::sin(x)));
    engine.step();
  }
  const std::vector<double> rates = engine.get_lr();
  const auto saved = engine.save_checkpoint(folder_.path() / "engine");
  Training rest = governed(1, "rest", text);
  rest.config.resume = saved.string();
  rest.fit = [&](Trainer& trainer, const Loader& data) {
    const FitResult result = trainer.fit(data);
    EXPECT_EQ(result.steps, 10 + 32);
    return result;
  };
  std::vector<double> first;
  rest.make_callbacks = [&] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainStart},
                                   [&](Trainer& trainer) { first = learning_rates(trainer.optimizer()); })};
  };
  rest.run();
  EXPECT_EQ(first, rates);
}

// A second training of the same weights: as the trainer does it without a file.
TEST_F(DeepSpeedTrainerTest, ASecondFitBeginsItsScheduleAndItsCountsAnew) {
  const std::string text = R"({"gradient_clipping": 0, "scheduler": {"type": "WarmupLR", "params":
    {"warmup_num_steps": 40, "warmup_max_lr": 0.02, "warmup_type": "linear"}}})";
  std::vector<double> rates;  // of each step
  const auto twice = [&](Training training, std::shared_ptr<Callback> schedule) {
    rates.clear();
    training.make_callbacks = [&, schedule] {
      std::vector<std::shared_ptr<Callback>> callbacks;
      if (schedule) callbacks.push_back(schedule);
      callbacks.push_back(std::make_shared<Callback>(
          CallbackOptions{.on = Stage::kTrainBatchStart},
          [&](Trainer& trainer) { rates.push_back(learning_rates(trainer.optimizer()).front()); }));
      return callbacks;
    };
    training.fit = [](Trainer& trainer, const Loader& data) {
      trainer.fit(data);
      return trainer.fit(data);
    };
    return training.run();
  };
  const LearningRateSchedule schedule =
      deepspeed::make_schedule(DeepSpeedConfig::from_text(text, "ds.json").scheduler).value();
  const Training::Outcome expected = twice(
      training(1, "own"), std::make_shared<ScheduleLearningRate>(schedule, ScheduleLearningRate::Per::kStep));
  const std::vector<double> expected_rates = rates;
  ASSERT_EQ(expected_rates.size(), 64u);
  EXPECT_EQ(expected_rates[0], expected_rates[32]);
  Training by_file = governed(1, "file", text);
  by_file.config.checkpoint_every = 8;
  const Training::Outcome outcome = twice(by_file, nullptr);
  EXPECT_EQ(rates, expected_rates);
  test::expect_close_weights(outcome, expected, 1e-5);
  EXPECT_EQ(outcome.result.steps, expected.result.steps);
  const checkpoint::Reader saved(folder_.path() / "file-2/checkpoints/step-0000000032");
  EXPECT_EQ(saved.metadata().at("engine").at("global_steps"), 32);
  EXPECT_EQ(saved.metadata().at("engine").at("global_samples"), 32 * 24);
}

// Four batches an epoch in steps of three: the fourth is left for another epoch.
TEST_F(DeepSpeedTrainerTest, AnEpochHasWholeStepsOnly) {
  const Training::Outcome outcome = governed(1, "whole", R"({"gradient_accumulation_steps": 3})").run();
  EXPECT_EQ(outcome.result.steps, 8);
  EXPECT_THAT(test::error_of([&] { governed(1, "none", R"({"gradient_accumulation_steps": 5})").run(); }),
              HasSubstr("an epoch has 4 batches a rank, and deepspeed_config accumulates 5"));
}

// A batch is left over after the step that ends an epoch: that step is saved once, with the
// epoch done.
TEST_F(DeepSpeedTrainerTest, TheLastStepOfAnEpochIsSavedOnce) {
  const auto saves = std::make_shared<test::CountedSaves>();
  Training training = governed(1, "once", R"({"gradient_accumulation_steps": 3})");
  training.config.checkpoint_every_steps = 1;
  training.make_callbacks = [&] { return std::vector<std::shared_ptr<Callback>>{saves}; };
  EXPECT_EQ(training.run().result.steps, 8);
  EXPECT_EQ(saves->count(), 8);
  EXPECT_EQ(checkpoint::newest_valid(folder_.path() / "once/checkpoints")->step, 8);
}

TEST_F(DeepSpeedTrainerTest, WhatDoesNotGoTogetherIsRefused) {
  const auto error = [&](const std::string& text, const std::function<void(Training&)>& change) {
    Training training = governed(1, "refused", text);
    change(training);
    return test::error_of([&] { training.run(); });
  };
  EXPECT_THAT(error("{}", [](Training& t) { t.config.clip_grad_value = 1; }),
              HasSubstr("clip_grad_value does not go with deepspeed_config"));
  EXPECT_THAT(error("{}", [](Training& t) { t.config.global_batch_size = 8; }),
              HasSubstr("global_batch_size does not go with deepspeed_config"));
  EXPECT_THAT(error(R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2})", [](Training&) {}),
              HasSubstr("ds.json:1:2"));
  EXPECT_THAT(error("zero_optimization: {\nstage: 3\n}",
                    [](Training& t) {
                      t.config.plot_every = 1;
                      t.config.plotting_functions = {
                          [](const Model&, int64_t) { return std::pair<std::string, Image>(); }};
                    }),
              HasSubstr("plotting_functions run the model on rank 0 alone"));
  EXPECT_THAT(error("{}",
                    [](Training& t) {
                      t.config.deepspeed_config.clear();
                      t.config.deepspeed = true;
                    }),
              HasSubstr("deepspeed needs a configuration"));
  EXPECT_THAT(error("{zer_optimization: {}}", [](Training&) {}), HasSubstr("zero_optimization"));
  EXPECT_THAT(error(R"({"scheduler": {"type": "WarmupLR"}})",
                    [](Training& t) {
                      t.make_callbacks = [] {
                        return std::vector<std::shared_ptr<Callback>>{
                            std::make_shared<ReduceLearningRateOnPlateau>()};
                      };
                    }),
              HasSubstr("plateau"));
}

TEST_F(DeepSpeedTrainerTest, FlagsThatTheFileSaysTooAreRefused) {
  const std::string path = file(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})");
  const auto error = [&](const std::vector<std::string>& flags) {
    std::vector<const char*> argv = {"program", "--deepspeed_config", path.c_str()};
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    return test::error_of([&] { TrainConfig::from_args(static_cast<int>(argv.size()), argv.data()); });
  };
  EXPECT_EQ(error({}), "no ConfigError");
  EXPECT_EQ(error({"--deepspeed", "--local_rank=0"}), "no ConfigError");
  EXPECT_EQ(error({"--local-rank", "0"}), "no ConfigError");
  EXPECT_THAT(error({"--batch-size", "4"}), HasSubstr("it is train_micro_batch_size_per_gpu"));
  EXPECT_THAT(error({"--zero-stage", "2"}), HasSubstr("it is zero_optimization.stage"));
  EXPECT_THAT(test::error_of([] {
                const std::vector<const char*> argv = {"program", "--deepspeed"};
                TrainConfig::from_args(2, argv.data());
              }),
              HasSubstr("deepspeed needs a configuration"));
}

// Set in code, as a program's own defaults are: they give way to the file, and not silently.
TEST_F(DeepSpeedTrainerTest, ValuesInCodeThatGiveWayToTheFileAreNamed) {
  const auto said = [&](const std::function<void(TrainConfig&)>& set) {
    Training training = governed(1, "said", R"({"train_micro_batch_size_per_gpu": 12,
      "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
      "zero_optimization": {"stage": 1, "ignore_unused_parameters": false}})");
    training.config.max_iter = 1;
    set(training.config);
    testing::internal::CaptureStderr();
    training.run();
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said([](TrainConfig&) {}), Not(HasSubstr("deepspeed_config overrides")));
  EXPECT_THAT(said([](TrainConfig& config) {
                config.batch_size = 12;
                config.accumulate_steps = 2;
                config.clip_grad_norm = 0.5;
                config.zero.stage = 1;
              }),
              Not(HasSubstr("deepspeed_config overrides")));
  const std::string text = said([](TrainConfig& config) {
    config.batch_size = 24;
    config.accumulate_steps = 3;
    config.precision = "bf16";
    config.clip_grad_norm = 1;
    config.zero.stage = 3;
    config.zero.persistence_threshold = 7;
    config.find_unused_parameters = true;
  });
  for (const char* line :
       {"batch_size, which the program sets to 24: 12 by its key train_micro_batch_size_per_gpu",
        "accumulate_steps, which the program sets to 3: 2 by",
        "precision, which the program sets to \"bf16\": \"fp32\" by",
        "clip_grad_norm, which the program sets to 1.0: 0.5 by",
        "zero_stage, which the program sets to 3: 1 by",
        "zero_persistence_threshold, which the program sets to 7: 100000 by",
        "find_unused_parameters, which the program sets to true: false by"}) {
    EXPECT_THAT(text, HasSubstr(std::string("deepspeed_config overrides ") + line));
  }
}

}  // namespace
}  // namespace lockstep
