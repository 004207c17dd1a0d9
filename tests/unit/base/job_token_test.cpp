#include "base/job_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/stat.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace lockstep::base {
namespace {

using Side = JobToken::Side;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;
using testing::ThrowsMessage;

struct Conversation {
  JobToken token{"secret"};
  Nonce coordinator = make_nonce(), member = make_nonce();

  MessageSeal seal(Side from) const { return token.seal(from, coordinator, member); }
};

TEST(MessageSealTest, OpensWhatTheOtherSideSealedInItsOrder) {
  const Conversation conversation;
  MessageSeal sender = conversation.seal(Side::kMember), receiver = conversation.seal(Side::kMember);
  for (const std::string message : {"first", "", "third"}) {
    const std::string sealed = sender.seal(message);
    EXPECT_EQ(sealed.size(), message.size() + MessageSeal::kOverheadBytes);
    EXPECT_THAT(sealed, Not(::testing::HasSubstr("first")));
    EXPECT_THAT(receiver.open(sealed), Optional(message));
  }
}

TEST(MessageSealTest, OpensNothingElse) {
  const Conversation conversation;
  MessageSeal sender = conversation.seal(Side::kMember), receiver = conversation.seal(Side::kMember);
  const std::string first = sender.seal("first"), second = sender.seal("second");
  EXPECT_FALSE(receiver.open(second)) << "one that is left out";
  ASSERT_TRUE(receiver.open(first));
  EXPECT_FALSE(receiver.open(first)) << "a replay";
  for (size_t i = 0; i < second.size(); ++i) {
    std::string changed = second;
    changed[i] ^= 1;
    EXPECT_FALSE(receiver.open(changed)) << "byte " << i << " changed";
  }
  for (size_t size = 0; size < second.size(); ++size) {
    EXPECT_FALSE(receiver.open(second.substr(0, size))) << "cut to " << size;
  }
  EXPECT_TRUE(receiver.open(second)) << "what was refused has changed nothing";
}

TEST(MessageSealTest, BelongsToOneDirectionOfOneConversationOfOneJob) {
  const Conversation conversation, other;
  const std::string sealed = conversation.seal(Side::kMember).seal("text");
  EXPECT_FALSE(conversation.seal(Side::kCoordinator).open(sealed)) << "reflected";
  EXPECT_FALSE(other.seal(Side::kMember).open(sealed)) << "of another conversation";
  Conversation stranger = conversation;
  stranger.token = JobToken("guess");
  EXPECT_FALSE(stranger.seal(Side::kMember).open(sealed));
}

TEST(JobTokenTest, DerivesTokensThatTellNothingOfEachOther) {
  const JobToken token("secret");
  EXPECT_EQ(token.derive("ranks of 7.0 0"), JobToken("secret").derive("ranks of 7.0 0"));
  EXPECT_NE(token.derive("ranks of 7.0 0"), token.derive("ranks of 7.0 1"));
  EXPECT_NE(token.derive("ranks of 7.0 0"), JobToken("Secret").derive("ranks of 7.0 0"));
  EXPECT_EQ(token.derive("x").size(), 64u);
  EXPECT_FALSE(equal(token.sign("a"), token.sign("b")));
  EXPECT_TRUE(equal(token.sign("a"), JobToken("secret").sign("a")));
}

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
