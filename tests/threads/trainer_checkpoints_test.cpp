// Which weights and checkpoints a training leaves, and what it makes of those that are there.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/weights.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/weights.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TrainerCheckpointsTest : public testing::Test {
 protected:
  TrainerCheckpointsTest() { training_.config = test::quiet_config(folder_.path() / "run"); }

  // A training in a folder of its own.
  Training::Outcome with(const std::function<void(Training&)>& change) const {
    Training changed = training_;
    changed.config.log_folder = (folder_.path() / fmt::format("run-{}", ++runs_)).string();
    change(changed);
    return changed.run();
  }

  static std::vector<std::string> checkpoints_of(const Training::Outcome& outcome) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(
             std::filesystem::path(outcome.result.run_folder) / "checkpoints")) {
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  test::TemporaryFolder folder_;
  Training training_;
  mutable int runs_ = 0;
};

// What validates is the average: it can be had as a file.
TEST_F(TrainerCheckpointsTest, TheAverageOfTheWeightsCanBeSaved) {
  for (const int stage : {0, 2}) {
    const auto file = [&](const char* name) { return (folder_.path() / name).string(); };
    const auto outcome = with([&](Training& training) {
      training.ranks = stage == 0 ? 1 : 2;
      training.config.zero.stage = stage;
      training.config.ema_decay = 0.9;
      training.config.log_model = true;
      training.config.checkpoint_every = 1;
      training.fit = [&](Trainer& trainer, const Loader& data) {
        FitResult result = trainer.fit(data);
        trainer.save_weights(file("trained.pt"));
        trainer.save_weights(file("average.pt"), Weights::kAverage);
        const Batch all = training.dataset()->get_batch(std::vector<int64_t>{0, 1, 2, 3}, SampleSeeds(0, 0));
        const at::Tensor inputs = all.data().to(torch::kFloat64);
        const at::Tensor averaged =
            trainer.predict(Loader(training.dataset(), {.batch_size = 16})).narrow(0, 0, 4);
        if (!trainer.world().is_main()) return result;
        const torch::NoGradGuard no_grad;
        EXPECT_FALSE(torch::allclose(trainer.model()(inputs), averaged))
            << "training goes on with the others";
        const auto module = std::dynamic_pointer_cast<torch::nn::Module>(trainer.model().module()->clone());
        load_weights(*module, file("average.pt"));
        EXPECT_TRUE(torch::allclose(module->as<torch::nn::Sequential>()->forward(inputs), averaged));
        return result;
      };
    });
    const std::filesystem::path folder = outcome.result.run_folder;
    const auto tensors = [](const std::filesystem::path& path) {
      const NamedTensors list = checkpoint::read_weights(path);
      return std::map<std::string, at::Tensor>(list.begin(), list.end());
    };
    const auto average = tensors(file("average.pt"));
    EXPECT_FALSE(average.empty());
    for (const auto& [name, tensor] : tensors(folder / "model_average.safetensors")) {
      EXPECT_TRUE(torch::equal(tensor, average.at(name))) << name;
    }
    for (const auto& [name, tensor] :
         checkpoint::read_average(checkpoint::find_weights(folder), std::nullopt)) {
      EXPECT_TRUE(torch::equal(tensor, average.at(name))) << name << " in the checkpoint";
    }
    EXPECT_FALSE(torch::equal(tensors(file("trained.pt")).begin()->second, average.begin()->second));
  }
  EXPECT_THAT(
      [&] {
        with([](Training& training) {
          training.prepare = [](Trainer& trainer) { trainer.save_weights("/dev/null", Weights::kAverage); };
        });
      },
      ThrowsMessage<ConfigError>(HasSubstr("there is no average of the weights to save: set ema_decay")));
}

// A finished run that starts again, and a training that starts from a checkpoint of weights.
TEST_F(TrainerCheckpointsTest, ACheckpointOfWeightsKeepsTheirAverage) {
  for (const int stage : {0, 2}) {
    SCOPED_TRACE(stage);
    const auto average_of = [](const std::filesystem::path& folder) {
      const NamedTensors list = checkpoint::read_weights(folder / "model_average.safetensors");
      EXPECT_FALSE(list.empty());
      return std::map<std::string, at::Tensor>(list.begin(), list.end());
    };
    const auto expect_equal = [](const auto& a, const auto& b) {
      for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
    };
    Training one = training_;
    one.ranks = stage == 0 ? 1 : 2;
    one.config.zero.stage = stage;
    one.config.log_folder = (folder_.path() / fmt::format("weights-{}", stage)).string();
    one.config.max_iter = 2;
    one.config.ema_decay = 0.9;
    one.config.log_model = true;
    one.config.checkpoint_every = 1;
    one.config.checkpoint_weights_only = true;
    one.run();
    const auto first = average_of(one.config.log_folder);
    one.run();
    expect_equal(average_of(one.config.log_folder), first);
    Training other = one;
    other.config.log_folder += "-other";
    other.config.resume = one.config.log_folder;
    other.config.max_iter = 0;
    other.run();
    expect_equal(average_of(other.config.log_folder), first);
  }
}

TEST_F(TrainerCheckpointsTest, BestOnlyRemembersThatTheRunHasEnded) {
  const auto train = [this](int64_t max_iter, int64_t stop_at) {
    Training training = training_;
    training.config.max_iter = max_iter;
    training.config.val_every = 1;
    training.config.checkpoint_best_only = true;
    // The first validation, after four steps, stays the best.
    training.config.validation_criterion = [](double, double best, double) { return std::isinf(best); };
    training.config.val_at_start = false;
    training.config.trainstop_criterion = [stop_at](const TrainResult& result) {
      return result.iteration == stop_at;
    };
    training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
    return training.run().result;
  };
  const FitResult whole = train(3, /*stop_at=*/-1);
  EXPECT_EQ(whole.epochs, 3);
  const FitResult again = train(3, -1);
  EXPECT_EQ(again.samples_per_s, 0) << "nothing is left to train";
  EXPECT_EQ(again.epochs, 3);
  EXPECT_EQ(again.steps, whole.steps);
  EXPECT_EQ(again.metrics, whole.metrics);
  const FitResult more = train(6, /*stop_at=*/5);
  EXPECT_EQ(more.epochs, 5) << "another max_iter resumes from the best";
  EXPECT_EQ(more.stopped, "trainstop_criterion");
  const FitResult stopped = train(6, 5);
  EXPECT_EQ(stopped.epochs, 5);
  EXPECT_EQ(stopped.stopped, "trainstop_criterion");
  EXPECT_EQ(stopped.samples_per_s, 0);
}

// Also where its max_iter is larger than an int.
TEST_F(TrainerCheckpointsTest, AStoppedRunStaysStopped) {
  const auto train = [this](int64_t max_iter, int64_t stop_at) {
    Training training = training_;
    training.config.max_iter = max_iter;
    training.config.checkpoint_every = 1;
    training.config.trainstop_criterion = [stop_at](const TrainResult& result) {
      return result.iteration == stop_at;
    };
    return training.run().result;
  };
  const int64_t many = int64_t{1} << 40;
  const FitResult first = train(many, 2);
  EXPECT_EQ(first.stopped, "trainstop_criterion");
  // What the checkpoint says counts where the folder does not say that the run has ended.
  std::filesystem::remove(std::filesystem::path(first.run_folder) / "run.json");
  const FitResult again = train(many, 3);
  EXPECT_EQ(again.epochs, 2);
  EXPECT_EQ(again.stopped, "trainstop_criterion");
  EXPECT_EQ(train(many + 1, 3).epochs, 3) << "another max_iter goes on";
}

// A criterion of one's own, for which the first stays the best, decides what rotation keeps.
TEST_F(TrainerCheckpointsTest, TheBestCheckpointIsTheCriterions) {
  std::vector<double> losses;
  const auto kept = [&](const std::function<void(TrainConfig&)>& change) {
    const auto outcome = with([&](Training& training) {
      training.config.max_iter = 6;
      training.config.val_every = 1;
      training.config.val_at_start = false;
      training.config.checkpoint_keep = 1;
      training.config.validation_criterion = [&](double loss, double best, double) {
        losses.push_back(loss);
        return std::isinf(best);
      };
      change(training.config);
      training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
    });
    return checkpoints_of(outcome);
  };
  const auto every = kept([](TrainConfig& config) { config.checkpoint_every = 1; });
  ASSERT_GT(losses.front(), losses.back()) << "training makes it less";
  EXPECT_THAT(every, testing::ElementsAre("step-0000000004", "step-0000000024")) << "the best and the newest";
  // Of the epochs 2, 4 and 6, where the best of all, after epoch 1, is not saved.
  const auto every_other = kept([](TrainConfig& config) { config.checkpoint_every = 2; });
  EXPECT_THAT(every_other, testing::ElementsAre("step-0000000008", "step-0000000024"));
}

TEST_F(TrainerCheckpointsTest, AnImprovementBelowValEpsilonIsNoBetterCheckpoint) {
  const auto outcome = with([](Training& training) {
    training.config.max_iter = 4;
    training.config.val_every = 1;
    training.config.val_at_start = false;
    training.config.checkpoint_every = 1;
    training.config.checkpoint_keep = 1;
    training.config.val_epsilon = 1e6;  // nothing is better than the first by this much
    training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  });
  EXPECT_THAT(checkpoints_of(outcome), testing::ElementsAre("step-0000000004", "step-0000000016"))
      << "the best and the newest";
}

}  // namespace
}  // namespace lockstep
