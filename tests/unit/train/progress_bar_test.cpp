#include "train/progress_bar.h"

namespace lockstep::train {
namespace {

constexpr ProgressState kHalfway{.epoch = 3,
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
