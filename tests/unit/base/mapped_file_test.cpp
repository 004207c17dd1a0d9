#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::base {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

TEST(MappedFile, ShowsTheBytesOfAFile) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "file";
  std::ofstream(path) << "bytes";
  const MappedFile file(path, "test");
  EXPECT_EQ(std::string(file.bytes().begin(), file.bytes().end()), "bytes");
  // Removed, it stays until the last map of it ends.
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
