#include "base/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/stat.h>

#include <fstream>

#include "base/job_token.h"
#include "support/temporary_folder.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::ThrowsMessage;

class KeyFileTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const Environment environment_{{"HOME", folder_.path().string()}};
};

TEST_F(KeyFileTest, GivesASecretToWhoeverKnowsItsName) {
  const KeyFile rank0("slurm-c-7.0-0", environment_), rank1("slurm-c-7.0-0", environment_);
  EXPECT_EQ(rank1.read(), std::nullopt) << "not written yet";
  const std::string secret = make_token();
  rank0.publish(secret);
  EXPECT_THAT(rank1.read(), Optional(secret));
  EXPECT_EQ(KeyFile("slurm-c-7.1-0", environment_).read(), std::nullopt);
  struct stat status {};
  ASSERT_EQ(::stat(rank0.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(rank0.path().parent_path(), folder_.path() / ".lockstep" / "keys");
  rank0.remove();
  EXPECT_EQ(rank1.read(), std::nullopt);
}

TEST_F(KeyFileTest, ReplacesWhatAnEarlierJobHasLeft) {
  const KeyFile file("job", environment_);
  file.publish(make_token());
  const std::string secret = make_token();
  file.publish(secret);
  EXPECT_THAT(file.read(), Optional(secret));
}

TEST_F(KeyFileTest, BelievesNoFileThatOthersCanReadOrWrite) {
  const KeyFile file("job", environment_);
  file.publish(make_token());
  for (const mode_t mode : {0640, 0604, 0620}) {
    ASSERT_EQ(::chmod(file.path().c_str(), mode), 0);
    EXPECT_THAT([&] { file.read(); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr(file.path().string()), HasSubstr("remove it"))));
  }
}

TEST_F(KeyFileTest, FollowsNoLink) {
  const KeyFile file("job", environment_);
  file.publish(make_token());
  const std::filesystem::path elsewhere = folder_.path() / "elsewhere";
  std::filesystem::rename(file.path(), elsewhere);
  std::filesystem::create_symlink(elsewhere, file.path());
  EXPECT_EQ(file.read(), std::nullopt);
}

TEST_F(KeyFileTest, SaysWhatToDoWhereNothingCanBeWritten) {
  const std::filesystem::path blocked = folder_.path() / "file";
  std::ofstream(blocked) << "no folder";
  const KeyFile file("job", {{"LOCKSTEP_KEY_DIR", (blocked / "keys").string()}});
  EXPECT_THAT(
      [&] { file.publish(make_token()); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("LOCKSTEP_KEY_DIR"), HasSubstr("LOCKSTEP_JOB_TOKEN"))));
}

TEST_F(KeyFileTest, MakesFileNamesOfAnything) {
  const KeyFile file("mpi-[fe80::1]/../x y", environment_);
  EXPECT_EQ(file.path().parent_path(), folder_.path() / ".lockstep" / "keys");
  EXPECT_EQ(file.path().filename(), "mpi-_fe80__1__.._x_y.key");
}

}  // namespace
}  // namespace lockstep::base
