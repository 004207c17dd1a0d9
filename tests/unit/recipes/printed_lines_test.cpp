// The lines against the pages' own format strings: what Python prints for them.

#include "recipes/printed_lines.h"

#include <gtest/gtest.h>
#include <lockstep/launch.h>

namespace lockstep::recipes {
namespace {

TEST(PrintedLinesTest, PrincetonsStart) {
  EXPECT_EQ(ddp_start_lines({.processes = 2, .nodes = 1, .gpus_per_node = 4, .gpus = 4}),
            "Number of allocated GPUs per node is 4.\nRunning basic DDP example on rank 0.\n"
            "Running basic DDP example on rank 1.\ngroup initialized? True");
}

TEST(PrintedLinesTest, PrincetonsTrainLine) {
  EXPECT_EQ(
      train_epoch_line(
          {.epoch = 1, .seen = 0, .total = 60000, .batch = 0, .batches = 938, .loss = 2.300039291381836}),
      "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300039");
  EXPECT_EQ(
      train_epoch_line(
          {.epoch = 14, .seen = 59520, .total = 60000, .batch = 930, .batches = 938, .loss = 0.0000004}),
      "Train Epoch: 14 [59520/60000 (99%)]\tLoss: 0.000000");
  // Half a percent goes to the even neighbour, in Python too.
  EXPECT_EQ(train_epoch_line({.epoch = 2, .seen = 5, .total = 1000, .batch = 1, .batches = 200, .loss = 1}),
            "Train Epoch: 2 [5/1000 (0%)]\tLoss: 1.000000");
  EXPECT_EQ(train_epoch_line({.epoch = 2, .seen = 15, .total = 1000, .batch = 3, .batches = 200, .loss = 1}),
            "Train Epoch: 2 [15/1000 (2%)]\tLoss: 1.000000");
}

TEST(PrintedLinesTest, PrincetonsTestLine) {
  EXPECT_EQ(test_set_line(0.04649, 9851, 10000),
            "\nTest set: Average loss: 0.0465, Accuracy: 9851/10000 (99%)\n");
  EXPECT_EQ(test_set_line(0, 10000, 10000),
            "\nTest set: Average loss: 0.0000, Accuracy: 10000/10000 (100%)\n");
}

TEST(PrintedLinesTest, CountsComeBackFromAccuracies) {
  for (int64_t correct = 0; correct <= 10000; ++correct) {
    const auto mean = static_cast<float>(correct) / 10000.0F;  // as a tensor's mean gives it
    ASSERT_EQ(correct_count(mean, 10000), correct);
  }
}

TEST(PrintedLinesTest, Sigma2sLines) {
  const JobShape shape{.processes = 4, .nodes = 1, .gpus_per_node = 4, .gpus = 4};
  EXPECT_EQ(training_started_lines(shape),
            "Training started with 4 processes across 1 nodes.\nUsing 4 GPUs per node.");
  const EpochNumbers numbers{.epoch = 95, .epochs = 100, .seconds = 1.3438, .images_per_s = 36577.3114};
  EXPECT_EQ(epoch_completed_line(numbers), "Epoch 95/100 completed in 1.344 seconds");
  EXPECT_EQ(validation_line(1.41649, 0.66631), "Validation Loss: 1.4165, Validation Accuracy: 0.6663");
  EXPECT_EQ(epoch_throughput_line(numbers), "Epoch Throughput: 36577.311 images/second");
  EXPECT_EQ(early_stopping_line(7), "Target accuracy reached. Early stopping after epoch 7.");
  EXPECT_EQ(training_summary_lines(shape, 133.107, 36926.594),
            "\nTraining Summary:\n"
            "Total training time: 133.107 seconds\n"
            "Throughput: 36926.594 images/second\n"
            "Number of nodes: 1\n"
            "Number of GPUs per node: 4\n"
            "Total GPUs used: 4\n"
            "Training completed successfully.");
}

TEST(PrintedLinesTest, LumisLinesHavePythonsFloats) {
  EXPECT_EQ(training_loss_line(1, 4.833333333333333), "Epoch 1, Training Loss: 4.833333333333333");
  EXPECT_EQ(training_loss_line(2, 4), "Epoch 2, Training Loss: 4.0");
  EXPECT_EQ(training_loss_line(3, 0.00001), "Epoch 3, Training Loss: 1e-05");
  EXPECT_EQ(validation_accuracy_line(2095, 10000), "Validation Accuracy: 20.95%");
  EXPECT_EQ(validation_accuracy_line(1, 3), "Validation Accuracy: 33.333333333333336%");
  EXPECT_EQ(validation_accuracy_line(5, 10), "Validation Accuracy: 50.0%");
  EXPECT_EQ(time_elapsed_line(512.25), "Time elapsed (s): 512.25");
}

}  // namespace
}  // namespace lockstep::recipes
