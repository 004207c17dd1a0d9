// Error files that no worker would write: each is understood or counts as none, and can
// be passed on.

#include <gtest/gtest.h>
#include <unistd.h>

#include "launch/error_file.h"
#include "support/fuzz.h"

namespace lockstep::launcher {
namespace {

class ErrorFileFuzzTest : public testing::Test {
 protected:
  ErrorFileFuzzTest() {
    folder_ = std::filesystem::temp_directory_path() / ("error_file_fuzz_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~ErrorFileFuzzTest() override { std::filesystem::remove_all(folder_); }

  // Whether it is taken; then it can be passed on and is taken again.
  bool takes(const std::string& bytes) const {
    const std::string path = folder_ / "error.json", copy = folder_ / "copy.json";
    std::ofstream(path, std::ios::binary) << bytes;
    const std::optional<WorkerError> error = read_error_file(path);
    if (!error) return false;
    pass_error_file_on(copy, error->text, -9);
    EXPECT_TRUE(read_error_file(copy)) << bytes;
    return true;
  }

  std::filesystem::path folder_;
};

TEST_F(ErrorFileFuzzTest, TheCorpusIsTakenOrNotAsItsNamesSay) {
  for (const test::FuzzFile& file : test::fuzz_corpus("error_file")) {
    EXPECT_EQ(takes(file.bytes), !file.is_hostile()) << file.name;
  }
}

TEST_F(ErrorFileFuzzTest, MutationsDoNoHarm) {
  int taken = 0, refused = 0;
  test::for_each_mutation(test::fuzz_corpus("error_file"), 300, "[{\"message\":0.1e9,\\u0000}]", 20260104,
                          [&](const std::string& bytes) { ++(takes(bytes) ? taken : refused); });
  EXPECT_GT(taken, 0) << "too wild to reach anything";
  EXPECT_GT(refused, 0);
}

// As deep as the largest file that is read can be: whoever walks it must not run out of stack.
TEST_F(ErrorFileFuzzTest, DepthDoesNoHarm) {
  const size_t depth = 500'000;
  takes("{\"message\": " + std::string(depth, '[') + std::string(depth, ']') + "}");
  takes("{\"message\": {\"extraInfo\": {\"py_callstack\": " + std::string(depth, '[') +
        std::string(depth, ']') + "}}}");
}

}  // namespace
}  // namespace lockstep::launcher
