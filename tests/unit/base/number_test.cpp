#include "base/number.h"

#include <gtest/gtest.h>

namespace lockstep::base {
namespace {

TEST(ParseIntegerTest, TakesTheWholeText) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-7"), -7);
  EXPECT_EQ(parse_integer("007"), 7);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
}

TEST(ParseIntegerTest, RefusesAnythingElse) {
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "0x1", "one", "-", "9223372036854775808"}) {
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep::base
