#include "recipes/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::recipes {
namespace {

using testing::HasSubstr;

// The error or the help text that a recipe answers with, before any rank is started.
std::string answer(const std::string& name, std::vector<const char*> words) {
  words.insert(words.begin(), name.c_str());
  try {
    find_recipe(name)->run(static_cast<int>(words.size()), words.data());
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const HelpRequested& help) {
    return help.what();
  }
  return "it ran";
}

TEST(RecipeTest, EveryOneHasTheCommonFlags) {
  for (const Recipe& recipe : all_recipes()) {
    SCOPED_TRACE(recipe.name);
    const std::string help = answer(recipe.name, {"--help"});
    for (const char* flag : {"--data", "--epochs", "--batch-size", "--max-batches", "--precision", "--nprocs",
                             "--backend", "--seed", "--run-dir", "--resume", "--config", "--compute-setup",
                             "--clip-grad-norm", "--checkpoint-every", "--lr"}) {
      if (std::string(flag) == "--lr" && std::string(recipe.name) == "cifar100") continue;
      EXPECT_THAT(help, HasSubstr(flag));
    }
    EXPECT_THAT(help, HasSubstr("LOCKSTEP_MAX_ITER"));
    EXPECT_THAT(recipe.defaults(), HasSubstr("--epochs"));
  }
}

TEST(RecipeTest, TheListTellsThePagesDefaults) {
  EXPECT_EQ(find_recipe("mnist")->defaults(),
            "--epochs 14 --batch-size 64 (a rank) --lr 1.0 --gamma 0.7 --seed 1");
  EXPECT_EQ(
      find_recipe("cifar100")->defaults(),
      "--epochs 5 --batch-size 512 (over all ranks) --base-lr 0.01 --target-accuracy 0.85 --patience 2");
  EXPECT_EQ(find_recipe("vit")->defaults(), "--model base --epochs 10 --batch-size 32 (a rank) --lr 0.001");
  EXPECT_EQ(find_recipe("gpt")->defaults(), "--model tiny --epochs 3 --batch-size 16 (a rank) --lr 0.0006");
}

TEST(RecipeTest, AFlagOfAnotherNameIsAnsweredWithTheRightOne) {
  EXPECT_THAT(answer("mnist", {"--learning-rate", "1"}), HasSubstr("--help lists the options"));
  EXPECT_THAT(answer("mnist", {"--test-batchsize", "1"}), HasSubstr("did you mean '--test-batch-size'?"));
  EXPECT_THAT(answer("mnist", {"--global-batch-size", "64"}), HasSubstr("--global-batch-size"))
      << "its batch is a rank's";
}

TEST(RecipeTest, ValuesOutOfRangeAreNamed) {
  EXPECT_EQ(answer("cifar100", {"--target-accuracy", "85"}),
            "[config] target_accuracy must be at most 1: 85.0");
  EXPECT_EQ(answer("cifar100", {"--target-accuracy", "-0.1"}),
            "[config] target_accuracy must be at least 0: -0.1");
  EXPECT_EQ(answer("cifar100", {"--patience", "-1"}), "[config] patience must be at least 0: -1");
  EXPECT_EQ(answer("cifar100", {"--precision", "fp8"}),
            "[config] precision must be one of auto, fp32, bf16, fp16: 'fp8'");
  EXPECT_EQ(answer("mnist", {"--log-interval", "0"}), "[config] log_interval must be at least 1: 0");
  EXPECT_EQ(answer("mnist", {"--batch-size", "0"}), "[config] batch_size must be at least 1: 0");
  EXPECT_EQ(answer("vit", {"--model", "huge"}), "[config] model must be one of tiny, small, base: 'huge'");
  EXPECT_EQ(answer("gpt", {"--model", "124m"}),
            "[config] model must be one of tiny, 124M, 355M, 774M, 1558M: '124m'");
  EXPECT_EQ(answer("sine", {"--data", "there"}), "[config] data must be one of synthetic: 'there'");
}

}  // namespace
}  // namespace lockstep::recipes
