#include <gtest/gtest.h>
#include <lockstep/deepspeed_config.h>

#include "support/config_error.h"

namespace lockstep {
namespace {

struct Given {
  std::optional<int64_t> total = {}, micro = {}, steps = {};

  DeepSpeedConfig config() const {
    DeepSpeedConfig config;
    config.train_batch_size = total;
    config.train_micro_batch_size_per_gpu = micro;
    config.gradient_accumulation_steps = steps;
    return config;
  }
  std::string error(int64_t world, std::optional<int64_t> loader = {}) const {
    return test::error_of([&] { config().resolve_batch(world, loader); });
  }
};

void expect_triple(const Given& given, int64_t world, int64_t total, int64_t micro, int64_t steps) {
  const DeepSpeedConfig::BatchTriple batch = given.config().resolve_batch(world);
  EXPECT_EQ(batch.train_batch_size, total);
  EXPECT_EQ(batch.micro_batch_size, micro);
  EXPECT_EQ(batch.accumulation_steps, steps);
}

TEST(BatchTest, AnyTwoGiveTheThird) {
  expect_triple({.total = 64, .micro = 4}, 8, 64, 4, 2);
  expect_triple({.total = 64, .steps = 2}, 8, 64, 4, 2);
  expect_triple({.micro = 4, .steps = 2}, 8, 64, 4, 2);
  expect_triple({.total = 64, .micro = 4, .steps = 2}, 8, 64, 4, 2);
}

TEST(BatchTest, OneAloneMeansOneAccumulationStep) {
  expect_triple({.total = 64}, 8, 64, 8, 1);
  expect_triple({.micro = 4}, 8, 32, 4, 1);
}

TEST(BatchTest, TakesTheLoadersBatchWhereTheFileHasNone) {
  EXPECT_EQ(Given{}.config().resolve_batch(8, 32).train_batch_size, 256);
  EXPECT_EQ(Given{.steps = 2}.config().resolve_batch(8, 32).train_batch_size, 512);
  EXPECT_EQ(Given{.total = 64}.config().resolve_batch(8, 32).micro_batch_size, 8) << "the file wins";
}

TEST(BatchTest, ExplainsAContradiction) {
  EXPECT_EQ((Given{.total = 32, .micro = 4, .steps = 1}.error(4)),
            "[deepspeed] train_batch_size 32 is not train_micro_batch_size_per_gpu 4 x "
            "gradient_accumulation_steps 1 x 4 "
            "ranks = 16: set train_batch_size to 16, or train_micro_batch_size_per_gpu to 8, or "
            "gradient_accumulation_steps to 2");
  EXPECT_EQ((Given{.total = 30, .micro = 4, .steps = 2}.error(4)),
            "[deepspeed] train_batch_size 30 is not train_micro_batch_size_per_gpu 4 x "
            "gradient_accumulation_steps 2 x 4 "
            "ranks = 32: set train_batch_size to 32, or train_micro_batch_size_per_gpu to no whole number "
            "(30 / 8 = "
            "3.75), or gradient_accumulation_steps to no whole number (30 / 16 = 1.875)");
  EXPECT_EQ(
      (Given{.total = 30, .micro = 4}.error(2)),
      "[deepspeed] train_batch_size 30 is no multiple of train_micro_batch_size_per_gpu 4 x 2 ranks = 8: set "
      "train_batch_size to 24, or train_micro_batch_size_per_gpu to 15, or leave one of the two out");
  EXPECT_EQ((Given{.total = 30}.error(4)),
            "[deepspeed] train_batch_size 30 cannot be split over 4 ranks: 30 / 4 = 7.5: set "
            "train_batch_size to 28 or "
            "32, or give train_micro_batch_size_per_gpu instead (the batch of one rank), or run on a number "
            "of ranks "
            "that divides it");
}

TEST(BatchTest, ExplainsABatchThatIsSmallerThanTheWorld) {
  EXPECT_EQ((Given{.total = 32}.error(64)),
            "[deepspeed] train_batch_size 32 is the batch of all ranks together, which is less than one "
            "sample for each "
            "of 64 ranks: set train_batch_size to a multiple of 64, or give train_micro_batch_size_per_gpu "
            "instead (the "
            "batch of one rank), or run on at most 32 ranks");
  EXPECT_EQ((Given{.total = 32, .steps = 4}.error(16)),
            "[deepspeed] train_batch_size 32 is the batch of all ranks together, which is less than one "
            "sample for each "
            "of 16 ranks x 4 gradient_accumulation_steps: set train_batch_size to a multiple of 64, or give "
            "train_micro_batch_size_per_gpu instead (the batch of one rank), or run on at most 8 ranks");
}

TEST(BatchTest, NeedsABatch) {
  EXPECT_EQ(Given{}.error(2),
            "[deepspeed] the configuration has no batch size: set train_batch_size (all ranks together) or "
            "train_micro_batch_size_per_gpu (one rank)");
  EXPECT_EQ(
      (Given{.steps = 2}.error(2)),
      "[deepspeed] the configuration has no batch size, and gradient_accumulation_steps alone is none: set "
      "train_batch_size (all ranks together) or train_micro_batch_size_per_gpu (one rank)");
}

TEST(BatchTest, DoesNotOverflow) {
  EXPECT_EQ((Given{.micro = 1'000'000'000'000, .steps = 1'000'000'000'000}.error(2)),
            "[deepspeed] the batch is too large to count: 1000000000000 x 1000000000000");
}

TEST(BatchTest, NamesThePlaceInTheFile) {
  const auto error = [](const char* text, int64_t world) {
    return test::error_of([&] { DeepSpeedConfig::from_text(text, "ds.json").resolve_batch(world); });
  };
  EXPECT_TRUE(error("{\n  train_batch_size: 32\n}", 64)
                  .starts_with("[deepspeed] ds.json:2:3: train_batch_size 32 is"));
  EXPECT_TRUE(error("{}", 64).starts_with("[deepspeed] ds.json: the configuration has no batch size"));
}

}  // namespace
}  // namespace lockstep
