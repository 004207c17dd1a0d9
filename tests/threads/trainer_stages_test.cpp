// Stages, hooks and callbacks: their order, when they are due, what they see.

#include <fmt/format.h>
#include <lockstep/c10d.h>

#include <atomic>
#include <limits>
#include <mutex>

#include "support/rank_threads.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class StagesTest : public testing::Test {
 protected:
  StagesTest() {
    training_.config = test::quiet_config(folder_.path());
    training_.config.max_iter = 2;
    training_.samples = 32;
    training_.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  }

  static std::shared_ptr<Callback> at(Stage stage, std::function<void(Trainer&)> function,
                                      int64_t called_every = 1) {
    return std::make_shared<Callback>(CallbackOptions{.on = stage, .called_every = called_every},
                                      std::move(function));
  }

  test::TemporaryFolder folder_;
  Training training_;
};

class Logging : public Trainer {
 public:
  Logging(World& world, Model model, torch::optim::Optimizer& optimizer, const TrainConfig& config,
          std::vector<std::string>& log)
      : Trainer(world, std::move(model), optimizer, config), log_(log) {}

 protected:
  void on_train_start() override { log_.push_back("hook train_start"); }
  void on_train_end(const std::vector<double>&, const std::vector<double>&) override {
    log_.push_back("hook train_end");
  }
  void on_train_epoch_start() override { log_.push_back("hook train_epoch_start"); }
  void on_train_epoch_end() override { log_.push_back("hook train_epoch_end"); }
  void on_train_batch_start(const Batch&) override { log_.push_back("hook train_batch_start"); }
  void on_train_batch_end(const LossResult&) override { log_.push_back("hook train_batch_end"); }
  void on_val_epoch_start() override { log_.push_back("hook val_epoch_start"); }
  void on_val_epoch_end() override { log_.push_back("hook val_epoch_end"); }
  void on_val_batch_start(const Batch&) override { log_.push_back("hook val_batch_start"); }
  void on_val_batch_end(const LossResult&) override { log_.push_back("hook val_batch_end"); }
  void on_test_batch_start(const Batch&) override { log_.push_back("hook test_batch_start"); }
  void on_test_batch_end(const LossResult&) override { log_.push_back("hook test_batch_end"); }

 private:
  std::vector<std::string>& log_;
};

TEST_F(StagesTest, HooksAreOutsideCallbacksInside) {
  std::vector<std::string> log;
  TrainConfig config = training_.config;
  config.max_iter = 1;
  config.val_every = 1;
  for (int stage = static_cast<int>(Stage::kTrainStart); stage <= static_cast<int>(Stage::kTestBatchEnd);
       ++stage) {
    config.callbacks.push_back(at(static_cast<Stage>(stage),
                                  [&log](Trainer& trainer) { log.push_back(to_string(trainer.stage())); }));
  }
  World world(RankMap{}, Communicator(), torch::kCPU);
  torch::nn::Sequential model(torch::nn::Linear(1, 4), torch::nn::Linear(4, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  Logging trainer(world, model, optimizer, config, log);
  const Loader data(training_.dataset(), {.batch_size = 32});
  trainer.fit(data, data);
  const std::vector<std::string> validation = {
      "hook val_epoch_start", "val_epoch_start",    "hook val_batch_start", "val_batch_start",
      "val_batch_end",        "hook val_batch_end", "val_epoch_end",        "hook val_epoch_end"};
  std::vector<std::string> expected = {"hook train_start", "train_start"};
  expected.insert(expected.end(), validation.begin(), validation.end());
  for (const char* line :
       {"hook train_epoch_start", "train_epoch_start", "hook train_batch_start", "train_batch_start",
        "train_batch_end", "hook train_batch_end", "train_epoch_end", "hook train_epoch_end"}) {
    expected.push_back(line);
  }
  expected.insert(expected.end(), validation.begin(), validation.end());
  expected.push_back("train_end");
  expected.push_back("hook train_end");
  EXPECT_EQ(log, expected);

  log.clear();
  trainer.test(data);
  EXPECT_THAT(
      log, ElementsAre("hook test_batch_start", "test_batch_start", "test_batch_end", "hook test_batch_end"));
  EXPECT_GT(trainer.metric("test_loss"), 0);
}

TEST_F(StagesTest, CalledEveryCountsEpochsAndBatchesAndZeroIsNever) {
  training_.config.max_iter = 6;
  std::vector<int64_t> epochs;
  std::vector<int64_t> steps;
  int never = 0;
  int always = 0;
  training_.config.callbacks = {
      at(
          Stage::kTrainEpochEnd, [&](Trainer& trainer) { epochs.push_back(trainer.result().iteration); }, 2),
      at(
          Stage::kTrainBatchEnd, [&](Trainer& trainer) { steps.push_back(trainer.result().step); }, 5),
      at(
          Stage::kTrainEpochEnd, [&](Trainer&) { ++never; }, 0),
      at(
          Stage::kTrainEnd, [&](Trainer&) { ++always; }, 0)};
  training_.run();
  EXPECT_THAT(epochs, ElementsAre(2, 4, 6));
  EXPECT_THAT(steps, ElementsAre(5, 10));
  EXPECT_EQ(never, 0);
  EXPECT_EQ(always, 1);
}

TEST_F(StagesTest, ConditionAndModifiedResult) {
  training_.config.max_iter = 3;
  std::vector<double> seen;
  training_.config.callbacks = {
      std::make_shared<Callback>(CallbackOptions{.modify_result =
                                                     [](TrainResult& result) {
                                                       result.metrics["train_loss"] = 7;
                                                       result.metrics["extra"] = 1;
                                                     }},
                                 [](Trainer&) {}),
      std::make_shared<Callback>(
          CallbackOptions{
              .condition = [](const Trainer& trainer) { return trainer.result().iteration == 2; }},
          [&](Trainer& trainer) { seen.push_back(trainer.metric("train_loss") + trainer.metric("extra")); })};
  training_.run();
  EXPECT_THAT(seen, ElementsAre(8));
}

TEST_F(StagesTest, BadCallbacksAreRefused) {
  EXPECT_THAT([] { Callback({.on = Stage::kIdle}, [](Trainer&) {}); },
              ThrowsMessage<ConfigError>(HasSubstr("idle is none")));
  EXPECT_THAT([] { Callback({.called_every = -1}, [](Trainer&) {}); },
              ThrowsMessage<ConfigError>(HasSubstr("called_every must be at least 0: -1")));
  EXPECT_THAT([] { Callback({}, nullptr); }, ThrowsMessage<ConfigError>(HasSubstr("needs a function")));
}

TEST_F(StagesTest, OneRanksStopStopsAll) {
  training_.ranks = 3;
  training_.config.max_iter = 100;
  training_.config.callbacks = {at(Stage::kTrainBatchEnd, [](Trainer& trainer) {
    if (trainer.world().rank() == 2 && trainer.result().iteration == 4) trainer.stop_training("enough");
  })};
  const Training::Outcome outcome = training_.run();
  EXPECT_EQ(outcome.result.epochs, 4);
  EXPECT_EQ(outcome.result.stopped, "another rank asked for it");
}

TEST_F(StagesTest, EarlyStoppingGoesByTheMetricOfAllRanks) {
  training_.ranks = 2;
  training_.config.max_iter = 100;
  training_.config.val_every = 1;
  training_.make_callbacks = [] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 2})};
  };
  training_.make_optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 0.0);
  };
  const Training::Outcome outcome = training_.run();
  EXPECT_EQ(outcome.result.epochs, 3) << "the validation before training, and three that are no better";
  EXPECT_THAT(outcome.result.stopped, HasSubstr("val_loss has not improved on"));
}

TEST_F(StagesTest, TheValidationBeforeTrainingCanBeLeftOut) {
  training_.config.val_every = 1;
  training_.config.val_at_start = false;
  std::vector<int64_t> validated;
  training_.config.callbacks = {
      at(Stage::kValEpochEnd, [&](Trainer& trainer) { validated.push_back(trainer.result().iteration); })};
  training_.run();
  EXPECT_THAT(validated, ElementsAre(1, 2));
}

TEST_F(StagesTest, CallbacksKnowTheRunFolder) {
  std::string during;
  training_.config.callbacks = {
      at(Stage::kTrainStart, [&](Trainer& trainer) { during = trainer.run_folder(); })};
  training_.config.log_folder.clear();
  training_.config.root_folder = folder_.path().string();
  training_.config.run_name = "named";
  const Training::Outcome outcome = training_.run();
  EXPECT_EQ(during, outcome.result.run_folder);
  EXPECT_THAT(during, HasSubstr("/named_"));
}

TEST_F(StagesTest, StopsAtATargetThatHolds) {
  training_.config.max_iter = 100;
  int64_t calls = 0;
  training_.config.callbacks = {at(Stage::kTrainEpochEnd,
                                   [&](Trainer& trainer) {
                                     ++calls;
                                     trainer.modify_result([&](TrainResult& result) {
                                       result.metrics["train_accuracy"] = calls == 3 ? 0.5 : 0.9;
                                     });
                                   }),
                                std::make_shared<StopAtTarget>("train_accuracy", 0.85, 3)};
  EXPECT_EQ(training_.run().result.epochs, 6) << "0.9 0.9 0.5 0.9 0.9 0.9";
}

TEST_F(StagesTest, TrainstopCriterionStops) {
  training_.config.max_iter = 100;
  training_.config.trainstop_criterion = [](const TrainResult& result) { return result.iteration == 5; };
  const Training::Outcome outcome = training_.run();
  EXPECT_EQ(outcome.result.epochs, 5);
  EXPECT_EQ(outcome.result.stopped, "trainstop_criterion");
}

TEST_F(StagesTest, SchedulesByEpochAndByStep) {
  std::vector<double> rates;
  const auto note = [&rates](Trainer& trainer) {
    rates.push_back(learning_rates(trainer.optimizer()).front());
  };
  training_.config.max_iter = 3;
  training_.config.callbacks = {
      std::make_shared<ScheduleLearningRate>(step_decay({.every = 1, .gamma = 0.5})),
      at(Stage::kTrainEpochEnd, note)};
  training_.make_optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 0.4);
  };
  training_.run();
  EXPECT_THAT(rates, ElementsAre(0.4, 0.2, 0.1));

  rates.clear();
  training_.config.log_folder += "/other";
  training_.config.max_iter = 1;
  training_.loader.batch_size = 8;
  training_.config.callbacks = {std::make_shared<ScheduleLearningRate>(step_decay({.every = 1, .gamma = 0.5}),
                                                                       ScheduleLearningRate::Per::kStep),
                                at(Stage::kTrainBatchEnd, note)};
  training_.run();
  EXPECT_THAT(rates, ElementsAre(0.4, 0.2, 0.1, 0.05));
}

TEST_F(StagesTest, PlateauReducesOnAllRanksAlike) {
  training_.ranks = 2;
  training_.config.max_iter = 5;
  std::mutex mutex;
  std::vector<double> rates;
  training_.make_optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, 1e-30);
  };
  training_.make_callbacks = [&] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<ReduceLearningRateOnPlateau>(
            ReduceOnPlateauOptions{.patience = 1, .gamma = 0.5, .min_lr = 0, .eps = 0}),
        at(Stage::kTrainEnd, [&](Trainer& trainer) {
          const std::lock_guard lock(mutex);
          rates.push_back(learning_rates(trainer.optimizer()).front());
        })};
  };
  training_.run();
  EXPECT_THAT(rates, ElementsAre(0.25e-30, 0.25e-30)) << "best, miss, reduced, miss, reduced";
}

TEST_F(StagesTest, AMissingMetricIsNamedWithThoseThereAre) {
  training_.config.callbacks = {
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_accuracy"})};
  EXPECT_THAT(
      [&] { training_.run(); },
      ThrowsMessage<ConfigError>(HasSubstr("there is no metric 'train_accuracy': there are train_loss")));
}

TEST_F(StagesTest, ASaveThatOneRankAloneAsksForIsRefused) {
  training_.ranks = 2;
  training_.config.checkpoint_every = 100;
  training_.make_callbacks = [] {
    return std::vector{at(Stage::kTrainBatchEnd, [](Trainer& trainer) {
      if (trainer.world().is_main()) trainer.save_checkpoint();
    })};
  };
  EXPECT_THAT([&] { training_.run(); },
              ThrowsMessage<ConfigError>(HasSubstr("save_checkpoint: rank 1 did not come within")));
}

// Only its saved states tell an early stopping what was best: an infinity must come back.
TEST_F(StagesTest, AValidationThatIsInfiniteAtFirstDoesNotPreventResuming) {
  training_.config.val_every = 1;
  training_.config.checkpoint_every = 1;
  training_.config.max_iter = 2;
  training_.make_callbacks = [] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 10})};
  };
  training_.loss = [](const Batch& batch, const Model& model) {
    LossResult result = mse(batch, model);
    if (!at::GradMode::is_enabled()) result.loss = result.loss + std::numeric_limits<double>::infinity();
    return result;
  };
  EXPECT_EQ(training_.run().result.epochs, 2);
  training_.config.max_iter = 4;
  training_.config.resume = "auto";
  EXPECT_EQ(training_.run().result.epochs, 4);
}

TEST_F(StagesTest, ABatchNormInEvaluationModeStaysThere) {
  training_.config.val_every = 1;
  training_.config.max_iter = 2;
  torch::nn::BatchNorm1d frozen(4), trained(4);
  training_.make_model = [&] {
    return torch::nn::Sequential(torch::nn::Linear(1, 4), frozen, torch::nn::Tanh(), trained,
                                 torch::nn::Linear(4, 1));
  };
  training_.prepare = [&](Trainer&) { frozen->eval(); };
  training_.run();
  EXPECT_EQ(frozen->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_GT(trained->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_FALSE(frozen->is_training());
  EXPECT_TRUE(trained->is_training());
}

TEST_F(StagesTest, AModelInEvaluationModeIsTrained) {
  training_.batch_norm = true;
  training_.prepare = [](Trainer& trainer) { trainer.model().module()->eval(); };
  bool is_training = false;
  training_.config.callbacks = {at(Stage::kTrainBatchStart, [&](Trainer& trainer) {
    is_training = trainer.model().module()->children().at(1)->is_training();
  })};
  training_.run();
  EXPECT_TRUE(is_training);
}

// The loss of the step that breaks them is finite, and only the next one would tell.
TEST_F(StagesTest, BrokenWeightsAreNotSaved) {
  for (const int stage : {0, 1, 3}) {
    training_.ranks = 2;
    training_.loader.batch_size = 32;  // one step an epoch
    training_.config = test::quiet_config(folder_.path() / fmt::format("stage{}", stage));
    training_.config.zero.stage = stage;
    training_.config.max_iter = 4;
    training_.config.checkpoint_every = 1;
    training_.config.checkpoint_keep = 1;
    std::atomic<double> factor{1};
    training_.loss = [&](const Batch& batch, const Model& model) {
      LossResult result = mse(batch, model);
      result.loss = result.loss * factor.load();
      return result;
    };
    training_.make_callbacks = [&] {
      return std::vector{at(Stage::kTrainEpochStart, [&](Trainer& trainer) {
        if (trainer.result().iteration != 3) return;
        factor = 1e200;
        set_learning_rates(trainer.optimizer(), {1e200});
      })};
    };
    EXPECT_THAT([&] { training_.run(); },
                ThrowsMessage<ConfigError>(HasSubstr("the weights are not finite after step 3")))
        << "stage " << stage;
    factor = 1;
    training_.make_callbacks = nullptr;
    training_.config.resume = "auto";
    EXPECT_EQ(training_.run().result.epochs, 4) << "from the checkpoint of step 2";
  }
}

}  // namespace
}  // namespace lockstep
