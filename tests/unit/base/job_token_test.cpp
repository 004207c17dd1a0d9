#include "base/job_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

using ::testing::Not;
using ::testing::Optional;
using Side = JobToken::Side;

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

}  // namespace
}  // namespace lockstep::base
