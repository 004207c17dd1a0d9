#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::base {
namespace {

using test::error_of;
using testing::AllOf;
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

TEST(InputFile, ReadsAtAnyOffset) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "0123456789";
  const InputFile file(path, cannot_read("test"));
  EXPECT_EQ(file.bytes(), 10);
  std::string text(4, '\0');
  file.read(text.data(), 4, 3);
  EXPECT_EQ(text, "3456");
  EXPECT_EQ(file.read_some(4, 0), "0123");
  EXPECT_EQ(file.read_some(4, 8), "89");
  EXPECT_EQ(file.read_some(SIZE_MAX, 8), "89");
  EXPECT_EQ(file.read_some(4, 10), "");
  EXPECT_EQ(file.read_some(4, UINT64_MAX), "");
}

TEST(InputFile, AFileThatBecameShorterIsAFault) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "0123456789";
  const InputFile file(path, cannot_read("test"));
  std::filesystem::resize_file(path, 5);
  std::string text(10, '\0');
  EXPECT_THAT(error_of([&] { file.read(text.data(), 10, 0); }),
              AllOf(HasSubstr("[test] cannot read"), HasSubstr(path.string()), HasSubstr("became shorter")));
  EXPECT_EQ(file.read_some(10, 0), "01234");
}

TEST(InputFile, ThrowsTheErrorOfItsFault) {
  struct OwnError {
    std::string reason;
  };
  const FileFault fault = [](const std::filesystem::path&, const std::string& reason) {
    throw OwnError{reason};
  };
  const test::TemporaryFolder folder;
  try {
    const InputFile file(folder.path(), fault);
    FAIL() << "a folder was opened as a file";
  } catch (const OwnError& error) {
    EXPECT_EQ(error.reason, "not a regular file");
  }
}

TEST(ReadWholeFile, ReadsUpToTheLimit) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "0123456789";
  EXPECT_EQ(read_whole_file(path), "0123456789");
  EXPECT_EQ(read_whole_file(path, 4), "0123");
  EXPECT_EQ(read_whole_file(folder.path() / "none"), std::nullopt);
  EXPECT_EQ(errno, ENOENT);
}

TEST(ReadFirstLine, HasNoValueForAnEmptyFile) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "number") << "-1";
  EXPECT_EQ(read_first_line(folder.path() / "number"), "-1");
  std::ofstream(folder.path() / "lines") << "max 100000\nsecond";
  EXPECT_EQ(read_first_line(folder.path() / "lines"), "max 100000");
  std::ofstream(folder.path() / "blank") << "\n";
  EXPECT_EQ(read_first_line(folder.path() / "blank"), "");
  std::ofstream(folder.path() / "empty");
  EXPECT_EQ(read_first_line(folder.path() / "empty"), std::nullopt);
  EXPECT_EQ(read_first_line(folder.path() / "none"), std::nullopt);
}

TEST(MappedFile, ShowsTheBytesOfAFile) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "bytes";
  const MappedFile file(path, "test");
  EXPECT_EQ(std::string(file.bytes().begin(), file.bytes().end()), "bytes");
  // A removed file stays until its last mapping ends.
  std::filesystem::remove(path);
  EXPECT_EQ(file.bytes()[4], 's');
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "file").flush();
  EXPECT_TRUE(MappedFile(folder.path() / "file", "test").bytes().empty());
}

TEST(MappedFile, WhatIsNoFileIsAnError) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { MappedFile(folder.path() / "none", "test"); }),
              AllOf(HasSubstr("[test]"), HasSubstr("none"), HasSubstr("No such file")));
  EXPECT_THAT(error_of([&] { MappedFile(folder.path(), "test"); }), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { MappedFile(folder.path() / "pipe", "test"); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace lockstep::base
