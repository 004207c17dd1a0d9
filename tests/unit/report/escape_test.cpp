#include "report/escape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>

namespace lockstep::report {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(EscapeTest, MarkupEndsNoTagAndNoAttribute) {
  EXPECT_EQ(escape_markup("</script><b a=\"x\" c='y'>&amp;"),
            "&lt;/script&gt;&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(escape_markup("a\nb\tc é"), "a\nb\tc é");
}

TEST(EscapeTest, WhatIsNoTextIsReplaced) {
  EXPECT_EQ(escape_markup(std::string("a\0b\x01\x7f", 5)), "a\uFFFDb\uFFFD\uFFFD");
  EXPECT_EQ(escape_markup("\xff\xfe"), "\uFFFD\uFFFD");
  EXPECT_THAT(escape_markup("caf\xe9 au lait"), HasSubstr("au lait"));
}

TEST(EscapeTest, ScriptsDoNotEndAndMeanTheSame) {
  const Json value = {{"name", "</script><!-- <script> &"}};
  const std::string text = escape_script(value);
  EXPECT_THAT(text, Not(HasSubstr("<")));
  EXPECT_EQ(Json::parse(text), value);
  EXPECT_TRUE(Json::try_parse(escape_script({{"x", "\xff"}})));
}

}  // namespace
}  // namespace lockstep::report
