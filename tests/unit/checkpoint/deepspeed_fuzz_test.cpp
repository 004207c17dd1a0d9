// Hostile bytes in DeepSpeed's checkpoints: every file of tests/fuzz/deepspeed_checkpoint,
// and seeded mutations of files and of the pickles in them. The result is tensors or a
// ConfigError, and nothing is executed.

#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "checkpoint/deepspeed/deepspeed_checkpoint.h"
#include "support/config_error.h"
#include "support/fuzz.h"
#include "support/fuzz/torch/deepspeed_pickle.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/deepspeed_corpus.h"

// LibTorch's zip reader leaks memory when its constructor throws, as it does for damaged
// archives. Read by the address sanitizer's runtime, by this name.
extern "C" const char* __lsan_default_suppressions() { return "leak:mz_zip_reader_init\n"; }

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string pickle_of(const std::string& file) {
  std::istringstream stream(file);
  caffe2::serialize::PyTorchStreamReader reader(&stream);
  const auto [data, size] = reader.getRecord("data.pkl");
  return {static_cast<const char*>(data.get()), size};
}

TEST(DeepSpeedFuzzTest, HostileFilesAreErrorsThatNameThem) {
  size_t hostile = 0;
  for (const auto& entry : fs::directory_iterator(corpus())) {
    const std::string name = entry.path().filename();
    if (name.starts_with("stage")) continue;
    const fs::path stage = fs::directory_iterator(entry.path())->path();
    const fs::path file = fs::directory_iterator(stage)->path();
    const test::TemporaryFolder folder;
    fs::copy(corpus() / stage.filename(), folder.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    fs::copy(file, folder.path() / kTag / file.filename(), fs::copy_options::overwrite_existing);
    if (name.starts_with("hostile_")) {
      ++hostile;
      EXPECT_THAT(test::error_of([&] { fuzz::imported_elements(folder.path()); }),
                  HasSubstr(folder.path().string()))
          << name;
    } else {
      EXPECT_GT(fuzz::imported_elements(folder.path()), 100) << name;
    }
  }
  EXPECT_GE(hostile, 12U);
}

TEST(DeepSpeedFuzzTest, CodeIsNamedAndNotExecuted) {
  const test::TemporaryFolder folder;
  fs::copy(corpus() / "stage1", folder.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const std::string name = "mp_rank_00_model_states.pt";
  fs::copy(corpus() / "calls_code" / "stage1" / name, folder.path() / kTag / name,
           fs::copy_options::overwrite_existing);
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const auto left_behind = open_deepspeed_checkpoint(folder.path()).left_behind;
  fs::current_path(before);
  EXPECT_THAT(left_behind, Contains(HasSubstr("posix.system")));
  EXPECT_FALSE(fs::exists(folder.path() / "executed"));
}

// Calls `mutated` with mutations of each file of the stage, the others being honest.
template <typename Mutate>
size_t count_understood(const std::string& stage, int per_file, uint64_t seed, Mutate mutated) {
  const test::TemporaryFolder folder("/dev/shm");
  fs::copy(corpus() / stage, folder.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  std::mt19937_64 random(seed);
  size_t understood = 0;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder.path() / kTag)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const std::string honest = read_file(file);
    for (int i = 0; i < per_file; ++i) {
      write_file(file, mutated(honest, random));
      try {
        understood += fuzz::imported_elements(folder.path()) > 0 ? 1 : 0;
      } catch (const ConfigError&) {
      }
    }
    write_file(file, honest);
  }
  return understood;
}

TEST(DeepSpeedFuzzTest, MutatedFilesNeverDoMoreThanThrow) {
  size_t understood = 0;
  for (const char* stage : {"stage0", "stage1", "stage2", "stage3"}) {
    understood +=
        count_understood(stage, 60, 20261115, [](const std::string& honest, std::mt19937_64& random) {
          return test::mutate(honest, {{"", honest}}, "PK\x03\x04PK\x01\x02", random);
        });
  }
  EXPECT_GT(understood, 20U) << "some changes are in the values";
}

TEST(DeepSpeedFuzzTest, MutatedPicklesNeverDoMoreThanThrow) {
  size_t understood = 0;
  for (const char* stage : {"stage0", "stage1", "stage2", "stage3"}) {
    understood +=
        count_understood(stage, 150, 20261116, [](const std::string& honest, std::mt19937_64& random) {
          std::string pickle = pickle_of(honest);
          // Half of them by one bit: most of them keep their meaning.
          if (random() % 2 == 0) {
            pickle[random() % pickle.size()] ^= static_cast<char>(1 << (random() % 8));
          } else {
            pickle = test::mutate(pickle, {{"", pickle}}, "(]})2\x85\x94.tRQb", random);
          }
          return fuzz::records_with_pickle(honest, pickle);
        });
  }
  EXPECT_GT(understood, 100U) << "some are still checkpoints";
}

}  // namespace
}  // namespace lockstep::checkpoint
