#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "base/check.h"
#include "base/environment.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ErrorTest, TextNamesTheComponentFirst) {
  EXPECT_STREQ(ConfigError("cluster", "RANK is not a number: RANK='x'").what(),
               "[cluster] RANK is not a number: RANK='x'");
}

TEST(ErrorTest, CommErrorTellsRankAndRecovery) {
  const CommError error("comm", "rank 3 died", CommError::Recovery::kRebuild, 3);
  EXPECT_TRUE(error.can_rebuild());
  EXPECT_EQ(error.failed_rank(), 3);
}

TEST(CheckTest, PrintsBothOperandsAndThePlace) {
  EXPECT_THAT(
      [] { base::check_eq(2, 3, "bucket count"); },
      ThrowsMessage<InternalError>(AllOf(HasSubstr("bucket count: 2 != 3"), HasSubstr("error_test.cpp"))));
}

TEST(EnvironmentTest, TellsEmptyFromUnset) {
  const base::Environment environment{{"EMPTY", ""}};
  EXPECT_EQ(environment.get("EMPTY"), "");
  EXPECT_EQ(environment.get("UNSET"), std::nullopt);
}

}  // namespace
}  // namespace lockstep
