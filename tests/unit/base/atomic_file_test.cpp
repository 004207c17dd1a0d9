#include "base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <fstream>
#include <iterator>

namespace lockstep::base {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-atomic-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string content_of(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }

  std::filesystem::path folder_;
};

TEST_F(AtomicFileTest, ReplacesTheWholeContentAndLeavesNothingElse) {
  publish_file(folder_ / "f", "a long first version");
  publish_file(folder_ / "f", "short");
  EXPECT_EQ(content_of("f"), "short");
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 1);
}

TEST_F(AtomicFileTest, KeepsTheOldContentWhenTheTargetCannotBeReplaced) {
  std::filesystem::create_directory(folder_ / "taken");
  std::ofstream(folder_ / "taken" / "inside") << "kept";
  EXPECT_THAT([&] { publish_file(folder_ / "taken", "x"); }, ThrowsMessage<ConfigError>(HasSubstr("rename")));
  EXPECT_EQ(content_of("taken/inside"), "kept");
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 1);
}

TEST_F(AtomicFileTest, NamesThePathAndTheReason) {
  EXPECT_THAT([&] { publish_file(folder_ / "absent" / "f", "x"); },
              ThrowsMessage<ConfigError>(testing::AllOf(HasSubstr("absent/f"), HasSubstr("No such file"))));
}

TEST(AtomicFileFullDiskTest, ReportsAFullDisk) {
  EXPECT_THAT([] { publish_file("/dev/full/f", "x"); }, ThrowsMessage<ConfigError>(HasSubstr("/dev/full")));
}

}  // namespace
}  // namespace lockstep::base
