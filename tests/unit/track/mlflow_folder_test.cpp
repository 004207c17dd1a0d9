#include "track/mlflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

namespace fs = std::filesystem;

TEST(MlflowFolderTest, KnowsTheAddressesOfThisMachine) {
  for (const char* uri : {"http://localhost", "http://localhost:5000/a", "https://127.0.0.1:5000",
                          "http://127.8.9.1", "http://[::1]:5000", "http://me:pass@localhost:5000"}) {
    EXPECT_TRUE(is_on_this_machine(uri)) << uri;
  }
  for (const char* uri :
       {"http://host:5000", "http://10.0.0.1", "http://127.0.0.1.example.org", "http://[fe80::1]",
        "http://localhost@host", "http://host/localhost", "http://host/@localhost", "http://host?@localhost",
        "http://host#@localhost", "http://"}) {
    EXPECT_FALSE(is_on_this_machine(uri)) << uri;
  }
}

class MlflowRunFolderTest : public testing::Test {
 protected:
  fs::path place(const fs::path& folder, const std::string& name) const {
    return place_in_run_folder(folder, "r", name);
  }

  RunFolder folder_;
  const fs::path artifacts_ = folder_.path() / "1/r/artifacts";
};

TEST_F(MlflowRunFolderTest, AFileGoesBelowTheRunsFolder) {
  EXPECT_EQ(place(artifacts_, "text/a b/step_0.txt"), artifacts_ / "text/a b/step_0.txt");
  EXPECT_EQ(place(artifacts_, "/etc/passwd"), artifacts_ / "etc/passwd");
  EXPECT_EQ(place(artifacts_, "./a"), artifacts_ / "./a");
  fs::create_directories(artifacts_);
  folder_.put("1/r/artifacts/old", "text");
  EXPECT_EQ(place(artifacts_, "old"), artifacts_ / "old");
}

TEST_F(MlflowRunFolderTest, AFolderThatMlflowDoesNotMakeIsRefused) {
  for (const fs::path& folder : {folder_.path(), folder_.path() / "1/s/artifacts", folder_.path() / "1/r",
                                 folder_.path() / "1/r/artifacts/more", folder_.path() / "a/../r/artifacts",
                                 fs::path("r/artifacts"), fs::path("/")}) {
    EXPECT_THAT([&] { place(folder, "file"); }, ThrowsMessage<ConfigError>(HasSubstr("r/artifacts")))
        << folder;
  }
  EXPECT_THROW(place_in_run_folder(folder_.path() / "../artifacts", "..", "file"), ConfigError);
}

TEST_F(MlflowRunFolderTest, ANameOrALinkThatLeadsOutIsRefused) {
  for (const char* name : {"..", "../file", "text/../../../file", "text/.."}) {
    EXPECT_THAT([&] { place(artifacts_, name); }, ThrowsMessage<ConfigError>(HasSubstr(name)));
  }
  EXPECT_EQ(place(artifacts_, "..a/b.."), artifacts_ / "..a/b..");
  fs::create_directories(artifacts_);
  fs::create_directories(folder_.path() / "private");
  folder_.put("private/key", "secret");
  fs::create_symlink(folder_.path() / "private", artifacts_ / "text");
  fs::create_symlink(folder_.path() / "private/key", artifacts_ / "key");
  fs::create_symlink(folder_.path() / "private/new", artifacts_ / "new");
  for (const char* name : {"text/file", "key", "new"}) {
    EXPECT_THAT([&] { place(artifacts_, name); }, ThrowsMessage<ConfigError>(HasSubstr("link"))) << name;
  }
  fs::create_directories(folder_.path() / "2/r");
  fs::create_symlink(folder_.path() / "private", folder_.path() / "2/r/artifacts");
  EXPECT_THAT([&] { place(folder_.path() / "2/r/artifacts", "key"); },
              ThrowsMessage<ConfigError>(HasSubstr("link")));
  // What is above the run's folder is the administrator's.
  fs::create_directory_symlink(folder_.path() / "1", folder_.path() / "moved");
  EXPECT_EQ(place(folder_.path() / "moved/r/artifacts", "file"), folder_.path() / "moved/r/artifacts/file");
}

}  // namespace
}  // namespace lockstep::track
