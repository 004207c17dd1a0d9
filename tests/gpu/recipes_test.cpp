// `lockstep train` on a GPU, with made-up pictures: from flags to the run folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "recipes/recipe.h"
#include "support/gpu.h"
#include "support/rank_processes.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class GpuRecipesTest : public test::GpuTest {
 protected:
  // In a process of its own. With --nprocs its ranks are this program again, which come here
  // too; the first process alone looks at what they left.
  void train(const std::vector<std::string>& words) const {
    test::run_rank_processes(1, [&](const RankMap& map) {
      const fs::path run = fs::path(map.rendezvous.path).parent_path() / "run";
      std::vector<std::string> flags = words;
      flags.insert(flags.end(), {"--data", "synthetic", "--compute-setup", device().is_cpu() ? "cpu" : "gpu",
                                 "--epochs", "2", "--run-dir", run.string()});
      std::vector<const char*> argv;
      for (const std::string& flag : flags) argv.push_back(flag.c_str());
      EXPECT_EQ(recipes::find_recipe(words[0])->run(static_cast<int>(argv.size()), argv.data()),
                kExitSuccess);
      if (std::getenv("LOCAL_RANK") == nullptr) look(words[0], run);
    });
  }

 private:
  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file);
    EXPECT_TRUE(stream) << file;
    return std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }

  void look(const std::string& recipe, const fs::path& run) const {
    EXPECT_THAT(text_of(run / "metrics.csv"), HasSubstr("train_loss"));
    EXPECT_TRUE(fs::exists(run / "report.html"));
    if (recipe == "cifar100" && !device().is_cpu()) {
      EXPECT_THAT(text_of(run / "gpu.csv"), HasSubstr("utilization.gpu"));
    }
  }
};

const std::vector<std::string> kCifar = {"cifar100", "--max-samples", "256", "--batch-size",
                                         "32",       "--max-batches", "6",   "--test-batch-size",
                                         "64",       "--patience",    "0"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(GpuRecipesTest, CifarRecordedInBf16OverNccl) {
  train(with(kCifar, {"--precision", "bf16", "--cuda-graph", "--backend", "nccl"}));
}

TEST_F(GpuRecipesTest, CifarRecordedInFp16) { train(with(kCifar, {"--precision", "fp16", "--cuda-graph"})); }

TEST_F(GpuRecipesTest, CifarFromTheHostsMemory) {
  train(with(kCifar, {"--precision", "bf16", "--device-data", "no", "--num-workers", "3"}));
}

TEST_F(GpuRecipesTest, CifarOnTwoRanksThatShareTheGpu) {
  train(with(kCifar, {"--precision", "fp16", "--nprocs", "2", "--backend", "gloo"}));
}

TEST_F(GpuRecipesTest, MnistOnOneRank) { train({"mnist", "--max-samples", "512"}); }

TEST_F(GpuRecipesTest, VitRecordedInBf16) {
  train({"vit", "--model", "tiny", "--image-size", "32", "--max-samples", "64", "--batch-size", "8",
         "--precision", "bf16", "--cuda-graph"});
}

TEST_F(GpuRecipesTest, GptRecordedInBf16) {
  train({"gpt", "--context", "64", "--batch-size", "4", "--max-batches", "6", "--precision", "bf16",
         "--cuda-graph"});
}

TEST_F(GpuRecipesTest, VitDividedOverTwoRanks) {
  train({"vit", "--model", "tiny", "--image-size", "32", "--max-samples", "64", "--batch-size", "8",
         "--dtype", "bfloat16", "--zero-stage", "3", "--nprocs", "2", "--backend", "gloo"});
}

}  // namespace
}  // namespace lockstep
