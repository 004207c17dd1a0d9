// The state after the last step is on disk when fit() is over, also where its first save failed.

#include <gtest/gtest.h>

#include "checkpoint/catalog.h"
#include "support/counted_saves.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;

class LastSaveTest : public testing::Test {
 protected:
  // Its last save of `saves` fails once fit() is past the last step.
  void expect_another_try(Training training, int saves) const {
    const auto counted = std::make_shared<test::CountedSaves>(saves);
    training.make_callbacks = [&] { return std::vector<std::shared_ptr<Callback>>{counted}; };
    const Training::Outcome outcome = training.run();
    EXPECT_EQ(counted->count(), saves + 1);
    const auto newest = checkpoint::newest_valid(folder_.path() / "run/checkpoints");
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, outcome.result.steps);
  }

  Training training(int ranks) const {
    Training training;
    training.ranks = ranks;
    training.config = test::quiet_config(folder_.path() / "run");
    training.config.max_iter = 2;
    training.config.checkpoint_every = 1;
    return training;
  }

  test::TemporaryFolder folder_{"/dev/shm"};
};

TEST_F(LastSaveTest, IsTriedAgain) { expect_another_try(training(1), 2); }

TEST_F(LastSaveTest, IsTriedAgainByAllRanksWhereOneHasSeenItFail) { expect_another_try(training(2), 2); }

TEST_F(LastSaveTest, IsTriedAgainWhereRanksSaveTheirParts) {
  Training divided = training(2);
  divided.config.zero.stage = 1;
  expect_another_try(divided, 2);
}

TEST_F(LastSaveTest, IsTriedAgainWhereOnlyTheBestIsSaved) {
  Training best = training(1);
  best.config.max_iter = 1;
  best.config.checkpoint_every = 0;
  best.config.checkpoint_best_only = true;
  best.config.val_every = 1;
  best.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  expect_another_try(best, 1);
}

}  // namespace
}  // namespace lockstep
