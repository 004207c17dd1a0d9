// Runs that were interrupted under Lockstep 0.1.0 before its folders were rearranged resume, and end with the
// same weights to the bit as that version made of them.
//
// tests/process/golden/earlier_runs has a run folder of each kind with a checkpoint in the middle of an
// epoch, and the weights (KIND.safetensors) with which 0.1.0 itself ended it, with the kernels that give the
// same bits on every CPU. A change of the format of checkpoints or run folders that breaks this test needs a
// reader of the old format; the files stay as they are.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

struct EarlierRun {
  std::string kind;
  std::vector<std::string> flags;
};

void PrintTo(const EarlierRun& run, std::ostream* out) { *out << run.kind; }

class EarlierRunsTest : public testing::TestWithParam<EarlierRun> {
 protected:
  static std::string golden(const std::string& name) {
    return data_path("process/golden/earlier_runs/" + name);
  }
  static Finished lockstep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program_path("lockstep"));
    Process process(std::move(arguments), portable_kernels());
    return finish(process, std::chrono::seconds(120));
  }
};

TEST_P(EarlierRunsTest, ResumeWithTheSameBits) {
  const TemporaryFolder folder;
  const std::string run = folder.path() / GetParam().kind;
  std::filesystem::copy(golden(GetParam().kind), run, std::filesystem::copy_options::recursive);
  std::vector<std::string> arguments = {"train",
                                        "sine",
                                        "--run-dir",
                                        run,
                                        "--epochs",
                                        "4",
                                        "--checkpoint-every-steps",
                                        "3",
                                        "--checkpoint-keep",
                                        "2",
                                        "--compute-setup",
                                        "cpu"};
  for (const std::string& flag : GetParam().flags)
    arguments.push_back(flag == "ds.json" ? golden(flag) : flag);
  const Finished trained = lockstep(arguments);
  ASSERT_EQ(trained.code, 0) << trained.errors;
  EXPECT_NE(trained.output.find("1 of 4 epochs are done"), std::string::npos) << trained.output;
  const Finished compared = lockstep({"ckpt", "diff", run, golden(GetParam().kind + ".safetensors")});
  EXPECT_EQ(compared.code, 0) << compared.output << compared.errors;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EarlierRunsTest,
    testing::Values(EarlierRun{"replicated", {"--ema-decay", "0.9"}},
                    EarlierRun{"sharded",
                               {"--nprocs", "2", "--zero-stage", "3", "--zero-persistence-threshold", "0"}},
                    EarlierRun{"deepspeed", {"--nprocs", "2", "--deepspeed_config", "ds.json"}}),
    [](const auto& info) { return info.param.kind; });

}  // namespace
}  // namespace lockstep::test
