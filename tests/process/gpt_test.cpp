// `lockstep train gpt` and `lockstep generate` as a user runs them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <fstream>
#include <regex>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

using Words = std::vector<std::string>;

class GptCommandTest : public testing::Test {
 protected:
  Finished run(Words words) const {
    words.insert(words.begin(), program_path("lockstep"));
    Process process(words, {{"LOCKSTEP_COMPUTE_SETUP", "cpu"},
                            {"LOCKSTEP_PROGRESS", "none"},
                            {"LOCKSTEP_DATA", std::nullopt},
                            {"OMP_NUM_THREADS", "1"}});
    return finish(process, seconds(240));
  }

  // A training of a few small steps.
  Finished train(const std::string& folder, const Words& more) const {
    Words words = {"train",     "gpt",        "--context",      "32", "--batch-size", "4",
                   "--run-dir", path(folder), "--log-interval", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  std::string write_text(const std::string& name, int lines) const {
    std::ofstream file(path(name));
    for (int i = 0; i < lines; ++i) file << "The quick brown fox jumps over the lazy dog.\n";
    return path(name);
  }

  TemporaryFolder folder_{"/dev/shm"};
};

std::string final_loss(const Finished& finished) {
  std::smatch found;
  return std::regex_search(finished.output, found, std::regex("final loss ([0-9.]+)")) ? found[1].str()
                                                                                       : finished.errors;
}

TEST_F(GptCommandTest, TrainsOnATextAndContinuesIt) {
  const std::string text = write_text("book.txt", 200);
  const Finished trained =
      train("run", {"--text", text, "--epochs", "2", "--max-batches", "50", "--lr", "3e-3"});
  ASSERT_EQ(trained.code, kExitSuccess) << trained.errors;
  EXPECT_THAT(trained.output,
              AllOf(HasSubstr("GPT of 830208 parameters, vocabulary 256, context 32. 128 tokens "
                              "per step, 100 steps.\n"),
                    ContainsRegex("\nStep 1/100 \\| loss 5\\.[0-9]{4} \\| lr 1\\.000e-03 \\| "
                                  "[0-9]+ tokens/s\n"),
                    ContainsRegex("\nStep 100/100 "),
                    ContainsRegex("\nValidation loss [0-2]\\.[0-9]{4}, perplexity ")));
  // What it has learned by heart.
  const Words common = {"generate", "--prompt",     "The quick", "--temperature",
                        "0",        "--max-tokens", "21",        "--checkpoint"};
  for (const char* checkpoint : {"run", "run/hugging_face/model.safetensors"}) {
    Words words = common;
    words.push_back(path(checkpoint));
    const Finished generated = run(words);
    EXPECT_EQ(generated.code, kExitSuccess) << generated.errors;
    EXPECT_EQ(generated.output, "The quick brown fox jumps over\n");
  }
  const Finished more =
      train("tuned", {"--text", text, "--weights", path("run/hugging_face/model.safetensors"), "--epochs",
                      "1", "--max-batches", "2", "--warmup-steps", "0"});
  EXPECT_THAT(more.output, ContainsRegex("\nStep 1/2 \\| loss [0-2]\\."));
}

TEST_F(GptCommandTest, EveryStageComputesTheSame) {
  const Words common = {
      "--nprocs",         "2", "--epochs", "1", "--max-batches", "4", "--val-every", "0", "--no-save-model",
      "--clip-grad-norm", "0"};
  std::string expected;
  int number = 0;
  for (const Words& stage :
       {Words{"--zero-stage", "0"}, Words{"--zero-stage", "2", "--zero-offload-optimizer", "cpu"},
        Words{"--zero-stage", "3", "--zero-persistence-threshold", "0", "--activation-checkpointing"}}) {
    Words words = common;
    words.insert(words.end(), stage.begin(), stage.end());
    const Finished finished = train("stage" + std::to_string(number++), words);
    ASSERT_EQ(finished.code, kExitSuccess) << finished.errors;
    if (expected.empty()) expected = final_loss(finished);
    EXPECT_EQ(final_loss(finished), expected) << testing::PrintToString(stage);
  }
}

TEST_F(GptCommandTest, AccumulatesToABatchOfTokensAndResumes) {
  const Words common = {"--nprocs",          "2",   "--max-batches", "6",
                        "--tokens-per-step", "768", "--peak-tflops", "1"};
  Words both = common;
  both.insert(both.end(), {"--epochs", "2"});
  const Finished whole = train("whole", both);
  ASSERT_EQ(whole.code, kExitSuccess) << whole.errors;
  EXPECT_THAT(whole.output, HasSubstr("768 tokens per step, 4 steps."));
  EXPECT_THAT(whole.output, ContainsRegex("tokens/s \\| MFU [0-9.]+ %\n"));
  // The same again from its checkpoint in the middle.
  Words first = both;
  first.insert(first.end(), {"--checkpoint-every-steps", "2"});
  const Finished part = train("part", first);
  ASSERT_EQ(part.code, kExitSuccess) << part.errors;
  Words again = both;
  again.insert(again.end(), {"--resume", path("part/checkpoints/step-0000000002")});
  const Finished resumed = train("again", again);
  EXPECT_EQ(resumed.code, kExitSuccess) << resumed.errors;
  EXPECT_EQ(final_loss(resumed), final_loss(whole));
}

TEST_F(GptCommandTest, SaysWhatIsWrong) {
  const auto refusal = [&](const Words& words) { return train("refused", words).errors; };
  EXPECT_THAT(refusal({"--tokens-per-step", "100"}),
              HasSubstr("tokens_per_step 100 is no multiple of the 128 tokens of one batch on all ranks"));
  EXPECT_THAT(refusal({"--data", path("none.bin")}), HasSubstr("cannot read the file of tokens"));
  EXPECT_THAT(refusal({"--text", path("none.txt")}), HasSubstr("cannot read the text"));
  const std::string text = write_text("book.txt", 20);
  EXPECT_THAT(refusal({"--text", text, "--data", "synthetic"}),
              HasSubstr("--text and --data exclude each other"));
  EXPECT_THAT(refusal({"--tokenizer", path("x.json")}), HasSubstr("give --text"));
  EXPECT_THAT(refusal({"--text", text, "--vocabulary", "90"}), HasSubstr("give a larger --vocabulary"));
  EXPECT_THAT(run({"generate", "--prompt", "a"}).errors, HasSubstr("--checkpoint"));
  EXPECT_THAT(run({"generate", "--checkpoint", path("none")}).errors,
              HasSubstr("there is no checkpoint or file"));
}

}  // namespace
}  // namespace lockstep::test
