#include "launch/agent/stream_choice.h"

#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::launcher {
namespace {

TEST(StreamChoiceTest, OneNumberIsForAll) {
  const StreamChoice both = StreamChoice::parse("--tee", "3");
  EXPECT_TRUE(both.of(17).out && both.of(17).err);
  const StreamChoice err = StreamChoice::parse("--tee", "2");
  EXPECT_TRUE(!err.of(0).out && err.of(0).err);
  EXPECT_FALSE(StreamChoice::parse("--tee", "0").any());
}

TEST(StreamChoiceTest, RanksOfAnyNumberOfDigits) {
  const StreamChoice some = StreamChoice::parse("--tee", "0:3,12:1,345:2");
  EXPECT_TRUE(some.of(12).out && !some.of(12).err);
  EXPECT_TRUE(some.of(345).err);
  EXPECT_FALSE(some.of(1).out || some.of(1).err);
  EXPECT_EQ(some.highest_rank(), 345);
}

TEST(StreamChoiceTest, AnythingElseIsRefused) {
  for (const char* text : {"", "4", "-1", "1:", ":1", "1:4", "1:1,", ",1:1", "1:1,1:2", "a:1", "1:1;2:1",
                           "99999999999:1", "3,0:1", "01", "1:1,2"}) {
    EXPECT_THROW(StreamChoice::parse("--redirects", text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher
