// Which states a training saves: the best few, and all that a resume needs.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "checkpoint/catalog.h"
#include "support/counted_saves.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::ElementsAre;

// 64 samples in batches of 16: four steps an epoch.
class TrainerSavesTest : public testing::Test {
 protected:
  Training training(const std::string& name) const {
    Training one;
    one.config = test::quiet_config(folder_.path() / name);
    return one;
  }

  std::vector<int64_t> saved_steps(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const auto& entry : checkpoint::list(folder_.path() / name / "checkpoints")) {
      EXPECT_TRUE(entry.valid()) << entry.problem;
      steps.push_back(entry.step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  test::TemporaryFolder folder_;
};

// Saves the best two of validations with these scores: before the first step if `at_start`, then after each
// epoch.
Training with_scores(Training one, const std::vector<double>& scores, bool at_start = false) {
  one.config.max_iter = static_cast<int64_t>(scores.size()) - (at_start ? 1 : 0);
  one.config.val_every = 1;
  one.config.val_at_start = at_start;
  one.config.checkpoint_best_only = true;
  one.config.checkpoint_keep_best = 2;
  one.config.best_metric = "val_score";
  const auto score = std::make_shared<double>(0);
  one.loss = [score](const Batch& batch, const Model& model) -> LossResult {
    return {mse(batch, model), {{"score", torch::tensor(*score, torch::kFloat64)}}};
  };
  one.config.callbacks.push_back(std::make_shared<Callback>(
      CallbackOptions{.on = Stage::kValEpochStart}, [scores, at_start, score](Trainer& trainer) {
        *score = scores.at(static_cast<size_t>(trainer.result().step / 4 - (at_start ? 0 : 1)));
      }));
  one.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  return one;
}

TEST_F(TrainerSavesTest, OnlySavedStatesAreAmongTheBestFew) {
  // The initial weights are the best, and no checkpoint has them.
  with_scores(training("initial"), {5, 10, 6, 7}, /*at_start=*/true).run();
  EXPECT_THAT(saved_steps("initial"), ElementsAre(8, 12));
}

TEST_F(TrainerSavesTest, ANaNIsWorseThanEveryNumber) {
  with_scores(training("nan"), {std::nan(""), 10, std::nan(""), 6, 7}).run();
  EXPECT_THAT(saved_steps("nan"), ElementsAre(16, 20));
}

// The second save, of the 2, fails while it is written.
TEST_F(TrainerSavesTest, AStateWhoseSaveFailedIsNotAmongTheBestFew) {
  for (const bool in_background : {true, false}) {
    const std::string name = fmt::format("failed-{}", in_background);
    SCOPED_TRACE(name);
    Training one = training(name);
    one.config.checkpoint_async = in_background;
    one.config.callbacks = {std::make_shared<test::CountedSaves>(/*broken=*/2)};
    with_scores(one, {7, 2, 8, 10}).run();
    EXPECT_THAT(saved_steps(name), ElementsAre(4, 12));
  }
}

// Nor is it the best one, so that the mark of the best goes to the best of those on disk.
TEST_F(TrainerSavesTest, AStateWhoseSaveFailedIsNotTheBestSavedOne) {
  Training one = training("mark");
  one.config.callbacks = {std::make_shared<test::CountedSaves>(/*broken=*/2)};
  one = with_scores(one, {9, 2, 8, 9.5});
  one.config.checkpoint_best_only = false;
  one.config.checkpoint_every = 1;
  one.config.checkpoint_keep = 1;
  one.config.checkpoint_keep_best = 1;
  one.run();
  EXPECT_THAT(saved_steps("mark"), ElementsAre(12, 16)) << "the best and the newest";
}

TEST_F(TrainerSavesTest, AfterAResumeWithAnotherModeItsOwnBestFewStay) {
  with_scores(training("changed"), {0.1, 0.95}).run();
  EXPECT_THAT(saved_steps("changed"), ElementsAre(4, 8));
  Training more = with_scores(training("changed"), {0, 0, 0.7, 0.9, 0.8});
  more.config.best_mode = "max";
  more.run();
  EXPECT_THAT(saved_steps("changed"), ElementsAre(16, 20));
}

// A step whose weights were saved is saved again with everything, before the training leaves.
TEST_F(TrainerSavesTest, AnInterruptedTrainingResumesAlsoWithCheckpointsOfWeights) {
  Training usual = training("uninterrupted");
  usual.config.max_iter = 6;
  const auto whole = usual.run();
  struct Case {
    int number;  // of the signal
    int broken;  // the first save of everything fails; only Ctrl-C goes on to the end of fit(), and saves
                 // again
  };
  for (const Case& interrupted : {Case{SIGUSR1, 0}, Case{SIGINT, 0}, Case{SIGINT, 1}}) {
    const std::string name = fmt::format("interrupted-{}-{}", interrupted.number, interrupted.broken);
    SCOPED_TRACE(name);
    Training one = training(name);
    one.config.max_iter = 6;
    one.config.checkpoint_weights_only = true;
    one.config.checkpoint_every_steps = 1;
    int64_t steps = 0;
    const auto count = std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchEnd},
                                                  [&steps](Trainer&) { ++steps; });
    const auto interrupt = std::make_shared<Callback>(
        CallbackOptions{.on = Stage::kTrainBatchEnd, .called_every = 5}, [&](Trainer&) {
          if (steps == 5) raise(interrupted.number);
        });
    one.config.callbacks = {count, interrupt, std::make_shared<test::CountedSaves>(interrupted.broken)};
    if (interrupted.number == SIGINT) {
      EXPECT_EQ(one.run().result.stopped, "interrupted");
    } else {
      EXPECT_THROW(one.run(), Preempted);
    }
    const int64_t before = steps;
    EXPECT_LT(before, 24) << "asked for at the latest after step 15";
    one.config.callbacks = {count};
    test::expect_equal_weights(one.run(), whole);
    EXPECT_EQ(steps, 24) << "after " << before << " steps before the signal";
  }
}

}  // namespace
}  // namespace lockstep
