#include "launcher/error_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/fuzz/core/error_file.h"

namespace lockstep::launcher {
namespace {

class ErrorFileTest : public testing::Test {
 protected:
  std::optional<WorkerError> read(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    return read_error_file(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = testing::TempDir() + "lockstep_error_file_test.json";
};

TEST_F(ErrorFileTest, ReadsTheShortShape) {
  const auto error = read(R"({"message": "boom", "timestamp": 12})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "boom");
  EXPECT_EQ(error->callstack, "");
  EXPECT_EQ(error->timestamp_s, 12);
}

TEST_F(ErrorFileTest, ReadsTheLongShape) {
  const auto error = read(
      R"({"message": {"message": "E: boom", "extraInfo": {"py_callstack": "a\nb", "timestamp": "34"}}})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "E: boom");
  EXPECT_EQ(error->callstack, "a\nb");
  EXPECT_EQ(error->timestamp_s, 34);
}

TEST_F(ErrorFileTest, OddContentIsNoError) {
  for (const char* content :
       {"", "{", "[]", "7", "null", R"({"note": 1})", "\xff\xfe", R"({"message": "half)"}) {
    EXPECT_FALSE(read(content)) << content;
  }
  EXPECT_FALSE(read_error_file("/nonexistent/error.json"));
}

TEST_F(ErrorFileTest, OddValuesAreShownAsTheyAre) {
  EXPECT_EQ(read(R"({"message": 5, "timestamp": "soon"})")->message, "5");
  EXPECT_EQ(read(R"({"message": {"extraInfo": 3}})")->message, "");
  EXPECT_EQ(read(R"({"message": {"message": ["a"], "extraInfo": {"timestamp": 1.5}}})")->message, R"(["a"])");
}

TEST_F(ErrorFileTest, WhatIsWrittenIsReadBack) {
  write_error_file(path_, {.message = "bad \xff byte", .timestamp_s = 56});
  const auto error = read_error_file(path_);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "bad \xEF\xBF\xBD byte");
  EXPECT_EQ(error->callstack, error->message);
  EXPECT_EQ(error->timestamp_s, 56);
}

TEST_F(ErrorFileTest, IsPassedOnAsItIsWithTheExitCodeWhereThereIsRoom) {
  forward_error_file(path_, R"({"message": "m",  "timestamp": 1})", 5);
  EXPECT_EQ(read_error_file(path_)->text, R"({"message": "m",  "timestamp": 1})");
  forward_error_file(path_, R"({"message": {"message": "m"}})", -11);
  EXPECT_EQ(read_error_file(path_)->text, R"({"message":{"errorCode":-11,"message":"m"}})");
}

// Whoever walks such a file must not run out of stack.
// The deepest JSON that the largest accepted file can hold. tests/unit/fuzz/core has other foreign
// bytes.
TEST(ErrorFileFuzzTest, DepthDoesNoHarm) {
  const size_t depth = 500'000;
  fuzz::takes_error_file("{\"message\": " + std::string(depth, '[') + std::string(depth, ']') + "}");
  fuzz::takes_error_file("{\"message\": {\"extraInfo\": {\"py_callstack\": " + std::string(depth, '[') +
                         std::string(depth, ']') + "}}}");
}

}  // namespace
}  // namespace lockstep::launcher
