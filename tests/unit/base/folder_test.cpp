#include "base/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "support/temporary_folder.h"

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;

class FolderTest : public testing::Test {
 protected:
  const test::TemporaryFolder folder_;
};

TEST_F(FolderTest, ListsEachEntryWithItsKind) {
  fs::create_directory(folder_.path() / "folder");
  std::ofstream(folder_.path() / ".file") << "text";
  fs::create_symlink("folder", folder_.path() / "to folder");
  fs::create_symlink(".file", folder_.path() / "to file");
  fs::create_symlink("nothing", folder_.path() / "to nothing");
  std::error_code error = std::make_error_code(std::errc::io_error);
  std::map<fs::path, std::string> kinds;
  for (const FolderEntry& entry : list_folder(folder_.path(), error)) {
    EXPECT_EQ(entry.path().parent_path(), folder_.path());
    kinds[entry.path().filename()] = std::string(entry.is_folder() ? "folder " : "") +
                                     (entry.is_file() ? "file " : "") + (entry.is_link() ? "link" : "");
  }
  EXPECT_FALSE(error) << error.message();
  EXPECT_EQ(kinds, (std::map<fs::path, std::string>{{"folder", "folder "},
                                                    {".file", "file "},
                                                    {"to folder", "folder link"},
                                                    {"to file", "file link"},
                                                    {"to nothing", "link"}}));
}

TEST_F(FolderTest, SaysWhyItCannotBeRead) {
  std::error_code error;
  EXPECT_TRUE(list_folder(folder_.path() / "none", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  std::ofstream(folder_.path() / "file") << "text";
  EXPECT_TRUE(list_folder(folder_.path() / "file", error).empty());
  EXPECT_EQ(error, std::errc::not_a_directory);
}

TEST_F(FolderTest, RemovesATreeAndNotWhatLinksInItLeadTo) {
  fs::create_directories(folder_.path() / "kept/inner");
  fs::create_directories(folder_.path() / "tree/inner");
  std::ofstream(folder_.path() / "tree/inner/file") << "text";
  fs::create_symlink("../kept", folder_.path() / "tree/link");
  std::error_code error;
  remove_tree(folder_.path() / "tree", error);
  EXPECT_FALSE(error) << error.message();
  EXPECT_FALSE(fs::exists(folder_.path() / "tree"));
  EXPECT_TRUE(fs::exists(folder_.path() / "kept/inner"));
  remove_tree(folder_.path() / "tree", error);
  EXPECT_FALSE(error) << "one that is not there";
}

}  // namespace
}  // namespace lockstep::base
