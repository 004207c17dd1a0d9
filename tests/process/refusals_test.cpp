// Options that do not go together, as a user of the programs meets them: the one thing that is
// wrong, and what to change.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

struct RefusedCommand {
  std::vector<std::string> arguments;  // of lockstep; FOLDER is an empty folder
  std::string sentence;
};

void PrintTo(const RefusedCommand& command, std::ostream* out) {
  for (const std::string& word : command.arguments) *out << word << ' ';
}

class RefusedCommandTest : public testing::TestWithParam<RefusedCommand> {};

TEST_P(RefusedCommandTest, NamesTheOneThingAndWhatChangesIt) {
  const TemporaryFolder folder;
  std::vector<std::string> words{program_path("lockstep")};
  for (const std::string& word : GetParam().arguments) {
    words.push_back(word == "FOLDER" ? folder.path().string() : word);
  }
  Process process(words);
  const Finished ended = finish(process, std::chrono::seconds(60));
  EXPECT_EQ(ended.code, kExitUsage) << ended.errors;
  EXPECT_THAT(ended.errors, testing::HasSubstr(GetParam().sentence));
}

std::vector<std::string> train(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train");
  arguments.insert(arguments.end(), {"--compute_setup", "cpu", "--root_folder", "FOLDER", "--max_iter", "1"});
  return arguments;
}

INSTANTIATE_TEST_SUITE_P(
    Commands, RefusedCommandTest,
    testing::Values(
        RefusedCommand{train({"vit", "--data", "synthetic", "--model", "tiny", "--cuda-graph"}),
                       "this rank trains on cpu: set compute_setup to gpu, or leave out cuda_graph"},
        RefusedCommand{train({"sine", "--cuda-graph"}),
                       "this rank trains on cpu: set compute_setup to gpu, or leave out cuda_graph"},
        RefusedCommand{train({"sine", "--cuda-graph", "--zero_stage", "1"}),
                       "cuda_graph cannot record a sharded step: zero_stage is 1, set it to 0"},
        RefusedCommand{train({"sine", "--cuda-graph", "--no_fused_optimizer"}),
                       "fused_optimizer is false, set it to true"},
        RefusedCommand{train({"sine", "--precision", "bf16", "--dtype", "float64"}),
                       "set dtype to float32, or precision to fp32"},
        RefusedCommand{train({"sine", "--checkpoint_best_only"}), "val_every is 0: set val_every"},
        RefusedCommand{
            train({"sine", "--zero_offload_optimizer", "cpu"}),
            "zero_offload_optimizer cpu needs zero_stage 1, 2 or 3, and it is 0: set zero_stage, or "
            "zero_offload_optimizer to none"},
        RefusedCommand{train({"sine", "--deepspeed"}), "give deepspeed_config a file"},
        RefusedCommand{{"ckpt", "export", "w.pt", "--to", "x.pt", "--script", "s.pt", "--prefix", "a."},
                       "--script takes the model as it is: leave out --prefix"},
        RefusedCommand{{"ckpt", "export", "w.pt", "--to", "x.pt", "--script", "s.pt", "--dtype", "float16"},
                       "--script takes the model as it is: leave out --dtype"},
        RefusedCommand{{"ckpt", "export", "w.pt", "--to", "x.pt", "--what", "all", "--dtype", "float16"},
                       "--dtype is for the weights of the model: leave out --what all, or --dtype"},
        RefusedCommand{{"ckpt", "export", "w.pt"},
                       "--to is required; lockstep ckpt export --help lists the options"},
        RefusedCommand{{"ckpt", "ls", "x", "--bst", "max"}, "did you mean '--best'?"},
        RefusedCommand{{"bench", "collectives", "--sizes", "4K,lots"},
                       "--sizes must be numbers of bytes, as 4096, 4K or 1M: 'lots'"},
        RefusedCommand{{"bench", "collectives", "--sizes", "99999999999T"}, "'99999999999T'"},
        RefusedCommand{{"bench", "data", "--threads", "2,0"}, "--threads must be at least 1: 0"},
        RefusedCommand{{"bench", "data", "--seconds", "0.001"}, "--seconds must be at least 0.01: 0.001"},
        RefusedCommand{{"slurm", "--wait", "--", "x"},
                       "--wait has no effect without --submit: add --submit, or leave out --wait"},
        RefusedCommand{{"slurm", "--test-only", "--submit", "--", "x"},
                       "--test-only submits nothing: leave out --test-only or --submit"},
        RefusedCommand{{"run", "--standalone", "--rdzv-endpoint", "h:1", "x"},
                       "--standalone leaves no room for --rdzv_endpoint: remove one of them"},
        RefusedCommand{{"run", "--module", "--no-python", "x"},
                       "--module and --no-python exclude each other: remove one"}));

// libcurl is loaded when a server is used, so a machine may lack it.
TEST(MissingLibraryTest, AServerNeedsLibcurl) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "libcurl.so.4") << "no library";
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string libraries = folder.path().string() + (before != nullptr ? ":" + std::string(before) : "");
  const Process::EnvironmentChanges changes{{"LD_LIBRARY_PATH", libraries},
                                            {"LOCKSTEP_ROOT_FOLDER", (folder.path() / "runs").string()},
                                            {"MLFLOW_TRACKING_URI", "http://127.0.0.1:9"}};
  Process without({program_path("sine"), "--max_iter", "1"}, changes);
  EXPECT_EQ(finish(without, std::chrono::seconds(60)).code, kExitSuccess);
  Process with({program_path("sine"), "--max_iter", "1", "--tracking_tool", "mlflow"}, changes);
  const Finished ended = finish(with, std::chrono::seconds(60));
  EXPECT_EQ(ended.code, kExitUsage) << ended.errors;
  EXPECT_THAT(ended.errors,
              testing::HasSubstr("a server of MLflow needs libcurl (Debian's package libcurl4), "
                                 "which does not load: "));
}

}  // namespace
}  // namespace lockstep::test
