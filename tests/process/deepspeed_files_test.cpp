// `lockstep train vit --deepspeed_config FILE`: configurations of many shapes drive LUMI's model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <fstream>

#include "support/deepspeed_files.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class DeepSpeedFilesTest : public testing::Test {
 protected:
  // One step of two ranks on small images that are made up.
  void expect_trains(const std::string& name, const std::string& text, std::vector<std::string> more) {
    SCOPED_TRACE(name);
    const auto file = folder_.path() / (name + ".json");
    std::ofstream(file) << text;
    std::vector<std::string> words = {program_path("lockstep"),
                                      "train",
                                      "vit",
                                      "--data",
                                      "synthetic",
                                      "--model",
                                      "tiny",
                                      "--image-size",
                                      "32",
                                      "--epochs",
                                      "1",
                                      "--nprocs",
                                      "2",
                                      "--no-save-model",
                                      "--deepspeed_config",
                                      file.string(),
                                      "--run-dir",
                                      (folder_.path() / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    Process process(words, {{"LOCKSTEP_COMPUTE_SETUP", "cpu"},
                            {"LOCKSTEP_PROGRESS", "none"},
                            {"HOME", folder_.path().string()},
                            {"OMP_NUM_THREADS", std::nullopt}});
    const auto status = process.wait(std::chrono::seconds(240));
    ASSERT_TRUE(status) << "no end: " << process.output() << process.errors();
    EXPECT_EQ(status->code, kExitSuccess) << process.errors();
    EXPECT_THAT(process.output(), HasSubstr("Trained 1 epochs (1 steps) on 2 ranks"));
    EXPECT_THAT(process.output(), ContainsRegex("Epoch 1, Training Loss: [0-9]+\\.[0-9]+\n"))
        << "a finite one";
  }

  TemporaryFolder folder_{"/dev/shm"};
};

TEST_F(DeepSpeedFilesTest, EachDrivesVit) {
  EXPECT_GE(deepspeed_files().size(), 15u);
  for (const DeepSpeedFile& file : deepspeed_files()) {
    const std::string name = file.name;
    std::vector<std::string> more = {"--max-samples", "20", "--max-batches",
                                     name == "accumulation" ? "2" : "1"};  // two for one step
    if (name == "auto_values") more.insert(more.end(), {"--batch-size", "4"});
    expect_trains(name, file.text, more);
  }
}

TEST_F(DeepSpeedFilesTest, LumisRepositorysDrivesVit) {
  expect_trains("ds_config", lumis_repository_file(), {"--max-samples", "40", "--max-batches", "1"});
}

}  // namespace
}  // namespace lockstep::test
