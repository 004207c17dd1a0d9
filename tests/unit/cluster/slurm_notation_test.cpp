#include "cluster/slurm_notation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/config_error.h"

namespace lockstep::cluster {
namespace {

using test::error_of;
using testing::ElementsAre;

std::vector<std::string> hosts(std::string_view text) { return expand_node_list(text, "LIST"); }
std::vector<int> counts(std::string_view text) { return expand_counts(text, "COUNTS"); }

std::string host_error(std::string_view text) {
  return error_of([&] { hosts(text); });
}

std::string count_error(std::string_view text) {
  return error_of([&] { counts(text); });
}

TEST(NodeListTest, ExpandsTheGrammar) {
  EXPECT_THAT(hosts("node"), ElementsAre("node"));
  EXPECT_THAT(hosts("b,a"), ElementsAre("b", "a"));
  EXPECT_THAT(hosts("n[1-3]"), ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(hosts("a[1],b[2-3]"), ElementsAre("a1", "b2", "b3"));
  EXPECT_THAT(hosts("n[3,1-2,7]"), ElementsAre("n3", "n1", "n2", "n7"));
  EXPECT_THAT(hosts("[1-2]"), ElementsAre("1", "2"));
  EXPECT_THAT(hosts("gpu-a.site_1"), ElementsAre("gpu-a.site_1"));
}

TEST(NodeListTest, LeadingZerosFixTheWidth) {
  EXPECT_THAT(hosts("n[008-011]"), ElementsAre("n008", "n009", "n010", "n011"));
  EXPECT_THAT(hosts("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(hosts("n[98-101]"), ElementsAre("n98", "n99", "n100", "n101"));
  EXPECT_THAT(hosts("n[00,0,01]"), ElementsAre("n00", "n0", "n01"));
}

TEST(NodeListTest, GroupsMultiplyTheLeftSlowest) {
  EXPECT_THAT(hosts("rack[0-1]_b[1-2]"), ElementsAre("rack0_b1", "rack0_b2", "rack1_b1", "rack1_b2"));
  EXPECT_THAT(hosts("[0-1]x[2-3]"), ElementsAre("0x2", "0x3", "1x2", "1x3"));
}

TEST(NodeListTest, TextMayFollowABracket) {
  EXPECT_THAT(hosts("n[1-2]-ib0.cluster"), ElementsAre("n1-ib0.cluster", "n2-ib0.cluster"));
}

TEST(NodeListTest, KeepsDuplicates) { EXPECT_THAT(hosts("n[1,1],n1"), ElementsAre("n1", "n1", "n1")); }

TEST(NodeListTest, TakesAsManyHostsAsAllowed) {
  EXPECT_EQ(hosts("n[0-262143]").size(), static_cast<size_t>(kMaxHosts));
  EXPECT_EQ(hosts("n[0-511][0-511]").size(), static_cast<size_t>(kMaxHosts));
}

TEST(NodeListTest, ShowsTextAndColumnOfAMistake) {
  EXPECT_EQ(host_error(""),
            "[cluster] LIST is not a node list: it ends where a host is expected at column 1: LIST=''");
  EXPECT_EQ(host_error("a,"),
            "[cluster] LIST is not a node list: it ends where a host is expected at column 3: LIST='a,'");
  EXPECT_EQ(host_error("a,,b"),
            "[cluster] LIST is not a node list: a host is expected at column 3: LIST='a,,b'");
  EXPECT_EQ(host_error("n[1-"),
            "[cluster] LIST is not a node list: it ends where a number is expected at column 5: LIST='n[1-'");
  EXPECT_EQ(host_error("n[1-3"),
            "[cluster] LIST is not a node list: it ends where ']' is expected at column 6: LIST='n[1-3'");
  EXPECT_EQ(host_error("n[]"),
            "[cluster] LIST is not a node list: a number is expected at column 3: LIST='n[]'");
  EXPECT_EQ(host_error("n[1-2-3]"),
            "[cluster] LIST is not a node list: ']' is expected at column 6: LIST='n[1-2-3]'");
  EXPECT_EQ(host_error("n[x]"),
            "[cluster] LIST is not a node list: a number is expected at column 3: LIST='n[x]'");
  EXPECT_EQ(host_error("n[1[2]]"),
            "[cluster] LIST is not a node list: ']' is expected at column 4: LIST='n[1[2]]'");
  EXPECT_EQ(host_error("n1]"),
            "[cluster] LIST is not a node list: a comma or the end is expected at column 3: LIST='n1]'");
  EXPECT_EQ(host_error("a b"),
            "[cluster] LIST is not a node list: a comma or the end is expected at column 2: LIST='a b'");
}

TEST(NodeListTest, RefusesReversedAndHugeRanges) {
  EXPECT_EQ(host_error("n[3-1]"),
            "[cluster] LIST is not a node list: the range 3-1 runs backwards at column 3: LIST='n[3-1]'");
  EXPECT_EQ(host_error("n[0-262144]"),
            "[cluster] LIST is not a node list: more than 262144 hosts at column 3: LIST='n[0-262144]'");
  EXPECT_EQ(host_error("n[0-999999999999999999]"),
            "[cluster] LIST is not a node list: more than 262144 hosts at column 3: "
            "LIST='n[0-999999999999999999]'");
  EXPECT_EQ(
      host_error("n[0-9999999999999999999]"),
      "[cluster] LIST is not a node list: a number is too long at column 5: LIST='n[0-9999999999999999999]'");
  EXPECT_EQ(host_error("n[0-511][0-512]"),
            "[cluster] LIST is not a node list: more than 262144 hosts at column 1: LIST='n[0-511][0-512]'");
  EXPECT_EQ(host_error("a,n[0-262143]"),
            "[cluster] LIST is not a node list: more than 262144 hosts at column 3: LIST='a,n[0-262143]'");
  const std::string name(256, 'x');
  EXPECT_EQ(host_error(name),
            "[cluster] LIST is not a node list: a host name is too long at column 1: LIST='" + name + "'");
}

TEST(CountsTest, ExpandsRepetitions) {
  EXPECT_THAT(counts("4"), ElementsAre(4));
  EXPECT_THAT(counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(counts("72(x2),36"), ElementsAre(72, 72, 36));
}

TEST(CountsTest, ShowsTextAndColumnOfAMistake) {
  EXPECT_EQ(count_error("2(x"),
            "[cluster] COUNTS is not a list of counts: it ends where a number is expected at column 4: "
            "COUNTS='2(x'");
  EXPECT_EQ(count_error("2(3)"),
            "[cluster] COUNTS is not a list of counts: 'x' is expected at column 3: COUNTS='2(3)'");
  EXPECT_EQ(count_error("2(x0)"),
            "[cluster] COUNTS is not a list of counts: a repetition must be at least 1 at column 4: "
            "COUNTS='2(x0)'");
  EXPECT_EQ(
      count_error("0"),
      "[cluster] COUNTS is not a list of counts: a count must be from 1 to 1048576 at column 1: COUNTS='0'");
  EXPECT_EQ(
      count_error("1(x262145)"),
      "[cluster] COUNTS is not a list of counts: more than 262144 nodes at column 1: COUNTS='1(x262145)'");
  EXPECT_EQ(
      count_error("2 "),
      "[cluster] COUNTS is not a list of counts: a comma or the end is expected at column 2: COUNTS='2 '");
}

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
