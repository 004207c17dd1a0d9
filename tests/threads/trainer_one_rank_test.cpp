// Bad input that only one rank of two has: all ranks end, none waits for ever, and what
// was saved before is still there to go on from.

#include <array>
#include <cmath>

#include "checkpoint/catalog.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kStepsBefore = 3;  // two an epoch: in the middle of the second one

// Whether this rank's next batch is bad. A rank is a thread.
thread_local bool is_bad = false;

class OneRankTest : public testing::Test {
 protected:
  OneRankTest() {
    training_.ranks = 2;
    training_.config = test::quiet_config(folder_.path() / "run");
    training_.config.max_iter = 4;
    training_.config.checkpoint_every_steps = 1;
    training_.fit = [this](Trainer& trainer, const Loader& data) {
      is_bad = false;
      try {
        return trainer.fit(data);
      } catch (const Error& error) {
        errors_[static_cast<size_t>(trainer.world().rank())] = error.what();
        throw;
      }
    };
  }

  // On rank 1 before the step after kStepsBefore.
  static std::shared_ptr<Callback> on_rank_1(std::function<void(Trainer&)> action) {
    return std::make_shared<Callback>(
        CallbackOptions{.on = Stage::kTrainBatchStart}, [action = std::move(action)](Trainer& trainer) {
          if (trainer.world().rank() == 1 && trainer.result().step == kStepsBefore) action(trainer);
        });
  }

  // The run as it is ends on both ranks; without its callbacks it resumes from the last
  // step that was good, and nothing of the bad one is in the result.
  void expect_ends_and_goes_on() {
    EXPECT_THROW(training_.run(), Error);
    EXPECT_FALSE(errors_[0].empty()) << "rank 0 did not notice";
    EXPECT_FALSE(errors_[1].empty()) << "rank 1 did not notice";
    const auto newest = checkpoint::newest_valid(folder_.path() / "run" / "checkpoints");
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, kStepsBefore);

    Training good = training_;
    good.make_callbacks = nullptr;
    good.loss = mse;
    const Training::Outcome resumed = good.run();
    EXPECT_EQ(resumed.result.epochs, 4);
    good.config.log_folder = (folder_.path() / "straight").string();
    test::expect_equal_weights(resumed, good.run());
  }

  test::TemporaryFolder folder_;
  Training training_;
  std::array<std::string, 2> errors_;
};

TEST_F(OneRankTest, ALossThatIsNanThereEndsAll) {
  training_.loss = [](const Batch& batch, const Model& model) {
    return mse(batch, model) * (is_bad ? NAN : 1.0);
  };
  training_.make_callbacks = [] {
    return std::vector<std::shared_ptr<Callback>>{on_rank_1([](Trainer&) { is_bad = true; })};
  };
  expect_ends_and_goes_on();
  EXPECT_THAT(errors_[1], AllOf(HasSubstr("the loss is nan in epoch 2, step 4 on rank 1"),
                                HasSubstr("the checkpoints before it are kept")));
  EXPECT_THAT(errors_[0], HasSubstr("rank 1")) << "says who left, or whose loss it was";
}

TEST_F(OneRankTest, AMetricThatIsMissingThereEndsAll) {
  training_.make_callbacks = [] {
    return std::vector<std::shared_ptr<Callback>>{
        on_rank_1([](Trainer& trainer) { trainer.metric("train_accuracy"); })};
  };
  expect_ends_and_goes_on();
  EXPECT_THAT(errors_[1], HasSubstr("there is no metric 'train_accuracy': there are train_loss"));
  EXPECT_THAT(errors_[0], HasSubstr("rank 1"));
}

TEST_F(OneRankTest, AModelThatFailsThereEndsAll) {
  training_.loss = [](const Batch& batch, const Model& model) {
    return mse(
        is_bad ? Batch{.tensors = {batch.data().to(torch::kLong), batch.target()}, .parts = {}} : batch,
        model);
  };
  training_.make_callbacks = [] {
    return std::vector<std::shared_ptr<Callback>>{on_rank_1([](Trainer&) { is_bad = true; })};
  };
  expect_ends_and_goes_on();
  EXPECT_THAT(errors_[1], HasSubstr("the model or the loss failed on a batch"));
  EXPECT_THAT(errors_[0], HasSubstr("rank 1"));
}

// What a loss does not tell on one rank is the mean of those that told it, on all ranks.
TEST_F(OneRankTest, AMetricThatOnlyOneRankHasIsTheSameOnAll) {
  training_.loss = [](const Batch& batch, const Model& model) {
    LossResult result = mse(batch, model);
    if (is_bad) result.metrics["accuracy"] = torch::tensor(0.25);
    return result;
  };
  std::array<double, 2> seen{};
  training_.make_callbacks = [&seen] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainStart},
                                   [](Trainer& trainer) { is_bad = trainer.world().rank() == 1; }),
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainEpochEnd}, [&seen](Trainer& trainer) {
          seen[static_cast<size_t>(trainer.world().rank())] = trainer.metric("train_accuracy");
        })};
  };
  EXPECT_EQ(training_.run().result.epochs, 4);
  EXPECT_THAT(seen, testing::ElementsAre(0.25, 0.25));
}

TEST_F(OneRankTest, ALoaderShorterThanTheBatchTrainsOnWhatThereIs) {
  training_.config.checkpoint_every_steps = 0;
  training_.samples = 8;
  training_.loader = {.batch_size = 16, .shuffle = false};
  for (const int ranks : {1, 2}) {
    training_.ranks = ranks;
    const auto train = [&](int64_t batch_size) {
      Training own = training_;
      own.loader.batch_size = batch_size;
      own.config.log_folder = folder_.path() / std::to_string(ranks * 100 + batch_size);
      return own.run();
    };
    const Training::Outcome longer = train(16);
    EXPECT_EQ(longer.result.steps, 4) << "one a step, as many as epochs";
    test::expect_equal_weights(longer, train(8 / ranks));
  }
}

}  // namespace
}  // namespace lockstep
