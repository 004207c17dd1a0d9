#include "cluster/time_limit.h"

#include <gtest/gtest.h>

namespace lockstep::cluster {
namespace {

using std::chrono::seconds;

TEST(TimeLimitTest, ReadsSlurmsSixForms) {
  EXPECT_EQ(parse_time_limit("30"), seconds(30 * 60));
  EXPECT_EQ(parse_time_limit("1:30"), seconds(90));
  EXPECT_EQ(parse_time_limit("2:30:15"), seconds(2 * 3600 + 30 * 60 + 15));
  EXPECT_EQ(parse_time_limit("2-12"), seconds((2 * 24 + 12) * 3600));
  EXPECT_EQ(parse_time_limit("1-2:30"), seconds(26 * 3600 + 30 * 60));
  EXPECT_EQ(parse_time_limit("1-02:03:04"), seconds(26 * 3600 + 3 * 60 + 4));
  EXPECT_EQ(parse_time_limit("0-0:0:5"), seconds(5));
  EXPECT_EQ(parse_time_limit("90:00"), seconds(90 * 60));
}

TEST(TimeLimitTest, RefusesTheRest) {
  for (const char* text :
       {"",          "0",  "0:00", "-5", "-0", "1:", ":1",   "1-",    "-1:00",    "1:2:3:4",
        "1-2:3:4:5", "1h", "1.5",  " 1", "1 ", "+1", "1--2", "1-2-3", "99999999", "99999999999999999999",
        "UNLIMITED"}) {
    EXPECT_EQ(parse_time_limit(text), std::nullopt) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace lockstep::cluster
