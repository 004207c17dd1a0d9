#include "train/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "train/evaluator.h"

namespace lockstep::train {
namespace {

const ProgressState kHalfway{.epoch = 3,
                             .epochs = 50,
                             .batch = 10,
                             .batches = 20,
                             .loss = 0.123456,
                             .samples_per_s = 1234,
                             .left = std::chrono::duration<double>(62)};

TEST(ProgressBarTest, TellsWhereItIsAndHowLongItTakes) {
  EXPECT_EQ(progress_text(kHalfway, 200),
            "epoch 3/50 [##########----------] 10/20  loss 0.1235  1.23e+03 samples/s  1:02 left");
}

TEST(ProgressBarTest, AValidationIsNamed) {
  ProgressState state = kHalfway;
  state.evaluation = "validation noisy";
  EXPECT_EQ(progress_text(state, 200),
            "validation noisy [##########----------] 10/20  loss 0.1235  1.23e+03 samples/s  1:02 left");
}

TEST(ProgressBarTest, BeforeTheFirstBatchThereIsNoLoss) {
  EXPECT_EQ(progress_text({.batches = 20, .evaluation = "validation"}, 200),
            "validation [--------------------] 0/20");
}

TEST(ProgressBarTest, TheTimeLeftIsThatOfTheStepsOrOfTheLimit) {
  using Seconds = std::chrono::duration<double>;
  EXPECT_EQ(time_left({.steps_left = 10, .stepping = Seconds(1)}), Seconds(0)) << "no step is known";
  EXPECT_EQ(time_left({.steps = 4, .steps_left = 10, .stepping = Seconds(2)}), Seconds(5));
  EXPECT_EQ(time_left({.steps = 4, .steps_left = 10, .stepping = Seconds(2), .limit = Seconds(3)}),
            Seconds(3));
  EXPECT_EQ(time_left({.steps = 4, .steps_left = 10, .stepping = Seconds(2), .limit = Seconds(8)}),
            Seconds(5));
  EXPECT_EQ(time_left({.steps = 4, .steps_left = -1, .stepping = Seconds(2)}), Seconds(0));
}

// Lines that the thread of a progress bar has written.
class WrittenLines {
 public:
  ProgressLines every_millisecond() {
    return {.period = std::chrono::milliseconds(1), .write = [this](const std::string& line) {
              const std::lock_guard lock(mutex_);
              lines_.push_back(line);
              changed_.notify_all();
            }};
  }

  // Blocks until a line that was written after the last call begins with the text.
  bool wait_for(const std::string& text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(2), [&] {
      while (read_ < lines_.size()) {
        if (lines_[read_++].starts_with(text)) return true;
      }
      return false;
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  size_t read_ = 0;
};

TEST(ProgressBarTest, LinesComeWhileABatchRuns) {
  WrittenLines lines;
  ProgressBar bar("lines", /*is_main=*/true, lines.every_millisecond());
  bar.begin({.epoch = 1, .epochs = 2, .batches = 8});
  ASSERT_TRUE(lines.wait_for("epoch 1/2 [--------------------] 0/8\n"));
  EXPECT_TRUE(bar.due());
  bar.show({.epoch = 1, .epochs = 2, .batch = 8, .batches = 8, .loss = 0.5});
  ASSERT_TRUE(lines.wait_for("epoch 1/2 [####################] 8/8  loss 0.5"));
  bar.begin({.batches = 3, .evaluation = "validation"});
  ASSERT_TRUE(lines.wait_for("validation [--------------------] 0/3\n"));
  bar.end_evaluation();
  bar.begin({.epoch = 2, .epochs = 2, .batches = 8});
  EXPECT_TRUE(lines.wait_for("epoch 2/2 [--------------------] 0/8  loss 0.5")) << "the loss before it";
}

TEST(ProgressBarTest, AnEvaluationIsShownBeforeItsFirstBatchIsDone) {
  WrittenLines lines;
  ProgressBar bar("lines", /*is_main=*/true, lines.every_millisecond());
  World world(RankMap{}, Communicator(), c10::kCPU);
  const Model model = torch::nn::Sequential(torch::nn::Linear(1, 1));
  const Loader data(TensorDataset{torch::zeros({4, 1}), torch::zeros({4, 1})}, {.batch_size = 2});
  int batches = 0;
  // Each batch takes until a line has reported it.
  const auto forward = [&](const Batch& batch) -> LossResult {
    EXPECT_TRUE(lines.wait_for(batches == 0 ? "validation [--------------------] 0/2\n"
                                            : "validation [##########----------] 1/2  loss "));
    ++batches;
    return mse(batch, model);
  };
  const BatchHooks hooks{.start = [](const Batch&) {}, .end = [](const LossResult&) {}};
  evaluate(data, world, torch::kFloat32, forward, {model}, TrainConfig(), hooks, {bar, "validation"});
  EXPECT_EQ(batches, 2);
}

TEST(ProgressBarTest, HoursAreHours) {
  ProgressState state = kHalfway;
  state.left = std::chrono::duration<double>(3 * 3600 + 61);
  EXPECT_THAT(progress_text(state, 200), testing::HasSubstr("3:01:01 left"));
}

TEST(ProgressBarTest, NeverWrapsTheTerminal) {
  for (int width = 2; width < 100; ++width) EXPECT_LT(progress_text(kHalfway, width).size(), width);
}

TEST(ProgressBarTest, MoreBatchesThanExpectedFillTheBarAndNoMore) {
  ProgressState state = kHalfway;
  state.batch = 40;
  EXPECT_THAT(progress_text(state, 200), testing::HasSubstr("[####################] 40/20"));
}

}  // namespace
}  // namespace lockstep::train
